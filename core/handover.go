package core

// The end of a grant, for the calls that wait: a release hands it over, or puts their token back into the key's FIFO; a
// loss lets them ask.

import (
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// withdraw lets the queue of an exclusive grant ask Redis itself: the grant will not be handed over.
func (w *waiters) withdraw(g *grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.queues[queueKey{g.key(), int(g.limit)}]; q != nil && q.Held() == g.fence {
		w.apply(q, nil, q.Lost(g.fence))
	}
}

// released hands the grant of a lease that was released over to the next call, if that is allowed:
// hand over → else requeue. Otherwise it returns the token that goes to Redis along with the
// release, and whether calls of other processes are known to wait.
func (w *waiters) released(g *grant, keptUntil, now time.Time) (requeue store.Requeue, wanted, handedOver bool) {
	if g.mode() != exclusive {
		return requeue, false, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted.of(g) {
		g.waiting.Store(true) // the message arrived when no call of this process waited
	}
	q := w.queues[queueKey{g.key(), exclusive}]
	if q == nil {
		return requeue, g.waiting.Load(), false
	}
	held := waitqueue.Held{Fence: g.fence, Used: int(g.used), Age: g.since.Elapsed(now), Wanted: g.waiting.Load()}
	if !keptUntil.After(now) && !g.unreserves && (g.along == nil || !g.along.Pending()) && !g.bounded() && !g.transferred.Load() && !w.reserved.since(q.key, g.madeAfter(), now) {
		held.TTL = g.ttl
	}
	r, actions := q.Released(now, held)
	w.apply(q, g, actions)
	requeue.Other, requeue.Fresh = r.Token, r.Fresh
	if r.Waits != nil {
		requeue.Mark, requeue.What = w.locker.store.Mark(), r.Waits.Of.(*waiter).opts.what
	}
	return requeue, r.Wanted, len(actions) > 0
}

// releaseAnswered takes the reply to the release of a grant, which was sent at sent or later.
func (w *waiters) releaseAnswered(g *grant, requeue store.Requeue, sent time.Time, reply store.ReleaseReply, err error) {
	w.mu.Lock()
	defer w.unlock()
	if g.waited && err == nil && !g.transferred.Load() {
		w.finished.add(g.token())
	}
	q := w.queues[queueKey{g.key(), int(g.limit)}]
	if q == nil {
		if requeue.Other == "" {
			return
		}
		q = w.queueOf(g.key(), int(g.limit))
	}
	if requeue.Mark == store.NotQueued {
		if requeue.Other != "" {
			w.finished.add(requeue.Other)
		}
		w.apply(q, nil, q.Freed(time.Now(), waitqueue.Release{Token: requeue.Other}, err == nil && reply.Owned))
		return
	}
	w.apply(q, nil, q.ReleaseAnswered(time.Now(), reply.Fence, refusal(requeue.Other, sent, requeue.Mark, reply.Standing), err))
}

// lost tells the queue that a grant has ended without a release.
func (w *waiters) lost(g *grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.queues[queueKey{g.key(), int(g.limit)}]; q != nil {
		w.apply(q, nil, q.Lost(g.fence))
	}
}

// ends takes a message that says when the key will be free without a release.
func (w *waiters) ends(m store.Message, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.queueNamed(m); q != nil {
		w.apply(q, nil, q.Ends(now.Add(m.Left)))
	}
}

// wantedBy records that calls of other processes wait for key, since the grant with this fence.
func (w *waiters) wantedBy(key string, fence int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.queues[queueKey{key, exclusive}]; q != nil {
		q.Wanted(fence)
		return
	}
	w.wanted.note(key, fence)
}

// contention are the keys for which calls of other processes wait, with the first fence of the grant that they wait for.
type contention map[string]int64

// maxContended bounds the map: grants that end without a release stay in it.
const maxContended = 1024

func (c contention) note(key string, fence int64) {
	if len(c) >= maxContended {
		clear(c)
	}
	c[key] = fence
}

// of reports whether calls of other processes are known to wait for a grant that is being released.
func (c contention) of(g *grant) (wanted bool) {
	if len(c) > 0 {
		key := g.key()
		wanted = c[key] == g.fence
		delete(c, key)
	}
	return wanted || g.waiting.Load()
}
