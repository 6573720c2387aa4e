package core

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// admission asks Redis to admit calls beside a holder of their process; see [waitqueue.Admission].
type admission struct {
	waiters *waiters
	queue   *queue
	*waitqueue.Admission
	record    string
	followers []follower
}

// follower is a call as it is to be admitted.
type follower struct {
	entry string
	lease time.Duration
	what  string
}

// newAdmission is called with mu held.
func (w *waiters) newAdmission(q *queue, a *waitqueue.Admission) admission {
	followers := make([]follower, len(a.Calls))
	for i, m := range a.Calls {
		followers[i] = follower{m.Token, m.Call.Lease, m.Call.Of.(*waiter).opts.what}
	}
	return admission{w, q, a, w.record(q), followers}
}

// answered takes the reply to an admission.
func (a admission) answered(fences []int64, err error) {
	w, q := a.waiters, a.queue
	var f waitqueue.Failure
	if err != nil {
		f = waitqueue.Failure{Err: unavailable("acquire", q.key, err), Unsent: !mayHaveRun(err), Local: errors.Is(err, redis.ErrPoolTimeout)}
	}
	w.mu.Lock()
	late := w.run(q, nil, q.Admitted(time.Now(), a.Admission, fences, f))
	w.unlock()
	if err == nil {
		w.locker.releaseLate(q.key, late)
	}
}

// admit implements store.
func (d *deployment) admit(record, leader string, followers []follower, done func(fences []int64, err error)) bool {
	cmd := d.command(context.Background(), admitScript, false, record, leader)
	for i := range followers {
		m := &followers[i]
		cmd.args = append(cmd.args, &m.entry, m.lease.Milliseconds(), &m.what)
	}
	cmd.onReply = func(r result) {
		fences, err := []int64(nil), r.err
		if err == nil {
			fences, err = integers(r.val, len(followers))
		}
		done(fences, err)
	}
	return d.batcher(record).submit(cmd)
}
