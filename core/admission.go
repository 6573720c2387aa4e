package core

import (
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// admission asks Redis to admit calls beside a grant of their process; see [waitqueue.Admission].
type admission struct {
	waiters *waiters
	queue   *queue
	*waitqueue.Admission
	record    string
	followers []store.Follower
}

// newAdmission is called with mu held.
func (w *waiters) newAdmission(q *queue, a *waitqueue.Admission) admission {
	followers := make([]store.Follower, len(a.Calls))
	for i, m := range a.Calls {
		followers[i] = store.Follower{Token: m.Token, Lease: m.Call.Lease, What: m.Call.Of.(*waiter).opts.what}
	}
	return admission{w, q, a, w.record(q), followers}
}

// answered takes the reply to an admission.
func (a admission) answered(fences []int64, err error) {
	w, q := a.waiters, a.queue
	var f waitqueue.Failure
	if err != nil {
		f = waitqueue.Failure{Err: store.Unavailable("acquire", q.key, err), Unsent: store.Unsent(err), Local: store.PoolTimeout(err)}
	}
	w.mu.Lock()
	late := w.apply(q, nil, q.Admitted(time.Now(), a.Admission, fences, f))
	w.unlock()
	if err == nil {
		w.locker.releaseLate(q.key, late)
	}
}
