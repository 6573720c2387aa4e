package core

// The calls that wait. Package core/internal/waitqueue decides what happens to them; this file has the
// mutex and the goroutines, and carries the decisions out.

import (
	"context"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/core/internal/waitqueue"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/trust"
)

const (
	// The bounds of the pause between two requests of a wait queue that no message can wake.
	pollMin = 10 * time.Millisecond
	pollMax = 250 * time.Millisecond
	// For how long a wait queue relies on being woken, at first. Then it has its token refreshed, since
	// the message that it waits for can have been lost.
	pollFloor = time.Second
)

// waiters are the calls of this process that wait for keys, in one [waitqueue.Queue] for each key
// and limit: call → event into the queue → carry out its actions.
//
// A queue has at most one token in the key's FIFO in Redis, and only its first call asks. While
// this process holds a key exclusively, its queue does not ask at all: the release hands the key
// over to the first call without Redis, as long as others need not wait too long for it (lock
// cohorting: Dice, Marathe & Shavit, 2012).
type waiters struct {
	locker *Locker
	pool   sync.Pool // of waiters
	config waitqueue.Config

	mu       sync.Mutex
	queues   map[queueKey]*queue
	waiting  int          // calls in all queues
	reserved reservations // keys whose grants are not handed over
	finished finishedTokens
	wanted   contention // for keys for which no call of this process waits

	admissions []admission             // to be sent when mu is unlocked
	refreshes  map[any][]store.Refresh // to be sent, by node; nil while others are in flight
}

type queueKey struct {
	key   string
	limit int
}

type queue struct {
	waitqueue.Queue
	key    string
	record string // the key's name in Redis; "" until it is asked for
	held   *grant // whose fence Held returns; stale if that is 0
	latest int64  // the key's latest fence, when Redis refused a call last
}

// waiter is a call that waits. Only its own goroutine uses it, except for the channels and the
// fields that all.mu guards.
type waiter struct {
	waitqueue.Call // guarded by all.mu
	all            *waiters
	queue          *queue
	opts           acquireOptions
	since          time.Time     // guarded by all.mu: when its call began
	wake           chan struct{} // holds one
	timer          *time.Timer
	grant          *grant        // guarded by all.mu: given to this call, and not taken yet
	asking         bool          // guarded by all.mu: the call has a request in flight, which a grant ends
	granted        chan struct{} // holds one: a grant arrived while the call was asking
}

func newWaiters(l *Locker) *waiters {
	ordered := l.store.Queues()
	return &waiters{
		locker: l, pool: sync.Pool{New: newWaiter}, queues: map[queueKey]*queue{}, refreshes: map[any][]store.Refresh{},
		reserved: reservations{said: map[string]time.Time{}}, finished: finishedTokens{tokens: map[string]string{}}, wanted: contention{},
		config: waitqueue.Config{
			Ordered:   ordered,
			Listening: l.store.Listening,
			NewToken:  func(limit int) string { return store.NewToken(limit, l.id) },
			Claim:     store.ClaimLease,
			Validity:  trust.Until,
			Expired:   trust.Passed,
			Backoff: func(n int) time.Duration {
				if ordered {
					return backoff.Spread(backoff.Exponential(n, pollMin, pollMax))
				}
				// Spread widely: if no caller had a majority, they are not to ask together again.
				return pollMin + backoff.Full(n, 2*pollMin, pollMax-pollMin)
			},
			Spread: backoff.Spread,
			Poll:   pollFloor,
			Epoch:  time.Now(),
			Fences: l.store.Fences(),
		},
	}
}

func newWaiter() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	c := &waiter{wake: make(chan struct{}, 1), granted: make(chan struct{}, 1), timer: timer}
	c.Of = c
	return c
}

// join puts a call that began at since at the end of the queue for key. If too many calls wait it
// returns nil, how many wait for the key, and whether the key is known to be held.
func (w *waiters) join(key string, o *acquireOptions, since time.Time) (c *waiter, waiting int, held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queueOf(key, o.limit)
	if q.Len() >= w.locker.maxPerKey || w.waiting >= w.locker.maxWaiters {
		_, waiting = q.Hint()
		return nil, waiting, q.Known()
	}
	if q.Len() == 0 {
		w.queues[queueKey{key, o.limit}] = q
	}
	w.waiting++
	c = w.pool.Get().(*waiter)
	c.all, c.queue, c.opts, c.since = w, q, *o, since
	c.Lease, c.Timeout, c.HandOver = o.firstLease(), o.replyTimeout(), 0
	if !o.bounded() {
		c.HandOver = o.ttl
	}
	q.Join(&c.Call)
	return c, 0, false
}

// queueOf returns the queue for a key and limit. If there is none it makes an empty one, which it
// does not store. Called with mu held.
func (w *waiters) queueOf(key string, limit int) *queue {
	if q := w.queues[queueKey{key, limit}]; q != nil {
		return q
	}
	return &queue{Queue: waitqueue.Queue{Config: &w.config, Limit: limit}, key: key}
}

// apply carries out what a queue has decided; released is the grant whose release the decision is
// about, or nil. It returns the tokens that could neither be used nor cancelled because the Locker
// is closed. Called with mu held.
func (w *waiters) apply(q *queue, released *grant, actions []waitqueue.Action) (late []string) {
	for i := range actions {
		switch a := &actions[i]; a.Kind {
		case waitqueue.Wake:
			send(a.Call.Of.(*waiter).wake, struct{}{})
		case waitqueue.HandOver:
			released.used++
			w.give(q, a.Call, released)
		case waitqueue.Give:
			g := w.locker.newGrant(w.record(q), a.Token, q.Limit, a.Fence, a.Asked, time.Now(), a.Until, &a.Call.Of.(*waiter).opts)
			g.waiting.Store(a.Wanted)
			if w.locker.leases.add(g) {
				w.give(q, a.Call, g)
			} else {
				w.waiting--
				late = append(late, a.Token)
			}
		case waitqueue.Cancel:
			if !w.cancel(q, a.Token) {
				late = append(late, a.Token)
			}
		case waitqueue.Admit:
			w.admissions = append(w.admissions, w.newAdmission(q, a.Admission))
		}
	}
	if k := (queueKey{q.key, q.Limit}); q.Empty() && w.queues[k] == q {
		delete(w.queues, k)
	}
	return late
}

// unlock unlocks mu, and then sends admissions: their replies may be delivered at once.
func (w *waiters) unlock() {
	all := w.admissions
	w.admissions = nil
	w.mu.Unlock()
	for _, a := range all {
		w.locker.store.Admit(a.record, a.Leader, a.Fence, a.followers, a.answered)
	}
}

func (w *waiters) give(q *queue, c *waitqueue.Call, g *grant) {
	w.waiting--
	if q.Limit == exclusive {
		q.held = g
	}
	to := c.Of.(*waiter)
	to.grant = g
	if to.asking {
		send(to.granted, struct{}{})
	} else {
		send(to.wake, struct{}{})
	}
}

// cancel has Redis forget a token, whether it has a grant or a place in the FIFO. It reports false
// when the Locker is closed.
func (w *waiters) cancel(q *queue, token string) bool {
	key, life := q.key, max(w.locker.firstLease, store.WaiterLife)
	w.finished.add(token)
	return w.locker.store.Cancel(store.ReleaseRequest{Record: w.record(q), Token: token}, life, func(owned bool) { w.locker.notifications.released(key, owned) })
}

func (w *waiters) record(q *queue) string {
	if q.record == "" {
		q.record = store.RecordName(w.locker.prefix, q.key)
	}
	return q.record
}

// next returns the grant that was given to the call, only once, or else what the call may do now.
func (c *waiter) next(now time.Time) (*grant, waitqueue.Step) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.asking {
		drain(c.granted)
	}
	c.asking = false
	if g := c.grant; g != nil {
		c.grant = nil
		return g, waitqueue.Step{}
	}
	v := c.queue.Next(now, &c.Call)
	if v.Ask {
		w.record(c.queue)
		c.asking = true
	}
	if v.Refresh != "" {
		w.refresh(c.queue, v.Refresh)
	}
	return nil, v
}

// answered takes the reply to the call's request, and until when a grant can be trusted. It returns
// the tokens of grants that arrived when the Locker was closed.
func (c *waiter) answered(req *waitqueue.Request, mark store.Mark, reply *store.AcquireReply, until time.Time) (late []string) {
	w, q := c.all, c.queue
	w.mu.Lock()
	defer w.unlock()
	if reply.Granted {
		return w.apply(q, nil, q.Granted(time.Now(), &c.Call, waitqueue.Grant{Token: req.Token, Fence: reply.Fence, Wanted: reply.Waiting, Room: reply.Room, Asked: req.Sent, Until: until}))
	}
	q.latest = reply.Latest
	return w.apply(q, nil, q.Refused(time.Now(), &c.Call, refusal(req.Token, req.Sent, mark, reply.Standing)))
}

// refusal is Redis's reply that a token, which was sent with a mark, cannot have the key.
func refusal(token string, sent time.Time, mark store.Mark, s store.Standing) *waitqueue.Refusal {
	return &waitqueue.Refusal{
		Token: token, Sent: sent, Polls: mark == store.Polls, Remaining: s.Remaining, Server: s.Server, Latest: s.Latest, Place: s.Place, Length: s.Queued,
	}
}

// unanswered records that the call no longer waits for the reply to its request.
func (c *waiter) unanswered(req *waitqueue.Request, f waitqueue.Failure) {
	w, q := c.all, c.queue
	w.mu.Lock()
	defer w.mu.Unlock()
	w.apply(q, nil, q.Unanswered(time.Now(), req, f))
}

// orphaned takes the reply to a request that no call waits for.
func (w *waiters) orphaned(key, token string, reply store.AcquireReply) {
	w.mu.Lock()
	q := w.queueOf(key, store.LimitOf(token))
	unclaimed := reply.Granted && !q.Claimed(token, reply.Fence)
	late := w.apply(q, nil, q.Orphaned(token, reply.Fence, reply.Latest, reply.Server))
	w.mu.Unlock()
	if unclaimed {
		(*storeEvents)(w.locker).Unclaimed(key)
	}
	if reply.Granted {
		w.locker.releaseLate(key, late)
	}
}

// leave takes the call out of its queue. A grant that was given to it and not taken is released, to
// the next call.
func (c *waiter) leave() {
	w := c.all
	w.mu.Lock()
	unused := c.grant
	if c.Queued() {
		w.waiting--
		w.apply(c.queue, nil, c.queue.Leave(&c.Call))
	}
	w.mu.Unlock()
	drain(c.wake) // nothing sends to it any more
	drain(c.granted)
	c.all, c.queue, c.opts, c.grant, c.asking = nil, nil, acquireOptions{}, nil, false
	w.pool.Put(c)
	if unused != nil {
		w.locker.life.Later(func() { _, _ = w.locker.releaseGrant(context.Background(), unused, time.Time{}, time.Now()) })
	}
}

// rejoin puts a call whose grant has ended before it could be used back at the head of its queue.
func (c *waiter) rejoin(g *grant) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	c.queue = w.queueOf(c.queue.key, c.queue.Limit)
	w.queues[queueKey{c.queue.key, c.queue.Limit}] = c.queue
	w.waiting++
	c.queue.Rejoin(&c.Call, g.fence)
}

// awaitEmpty waits until the waiting calls have noticed that the Locker is closing, for 100 ms at
// most: calls that leave before it is closed leave Redis's FIFO too.
func (w *waiters) awaitEmpty() {
	for range 100 {
		w.mu.Lock()
		n := w.waiting
		w.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// askAgain lets every queue ask at once: messages may have been missed.
func (w *waiters) askAgain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queues {
		w.apply(q, nil, q.AskAgain())
	}
}

// askNow lets the queue ask without delay, and wakes the call to do it.
func (c *waiter) askNow() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.queue.AskNow()
	send(c.wake, struct{}{})
}

// hint returns what the queue knows of the key, for a call that does not ask itself: how much is
// left of the holder's lease, how many calls wait, the latest fence, and why the latest request failed, if it did.
func (c *waiter) hint(now time.Time) (remaining time.Duration, waiting int, latest int64, failure error) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	until, waiting := c.queue.Hint()
	remaining, latest = until.Sub(now), c.queue.latest
	if c.queue.Held() != 0 {
		remaining, latest = c.queue.held.Deadline().Mono.Sub(now), c.queue.held.fence
	}
	return max(0, remaining), waiting, latest, c.queue.Failure()
}

// grantMessage takes the message of a grant, which arrived at the time now.
func (w *waiters) grantMessage(m store.Message, now time.Time) {
	w.mu.Lock()
	defer w.unlock()
	if q := w.queueNamed(m); q != nil {
		actions := q.GrantMessage(time.Now(), now, waitqueue.Grant{Token: q.Token(), Fence: m.Fence, Wanted: m.Waiting, Room: m.Room}, m.Claim)
		w.apply(q, nil, actions)
		for _, a := range actions {
			if a.Kind == waitqueue.Give && a.Call.Of.(*waiter).grant != nil {
				a.Call.Of.(*waiter).grant.waited = true
			}
		}
	} else if token, ok := w.finished.tokens[m.Name]; ok {
		_ = w.cancel(w.queueOf(m.Key, store.LimitOf(token)), token)
	}
}

// queueNamed returns the queue whose token a message names; nil if there is none. Called with mu held.
func (w *waiters) queueNamed(m store.Message) *queue {
	q := w.queues[queueKey{m.Key, store.LimitOf(m.Name)}]
	if q == nil || q.Token() == "" || store.Named(q.Token()) != m.Name {
		return nil
	}
	return q
}

// wait returns nil after d, or when the call is woken; ErrClosed when the Locker closes; and the
// ctx's error when ctx ends.
func (c *waiter) wait(ctx context.Context, d time.Duration, closing <-chan struct{}) error {
	c.timer.Reset(d)
	defer c.timer.Stop()
	select {
	case <-c.wake:
		return nil
	case <-c.timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closing:
		return ErrClosed
	}
}

func send[T any](ch chan<- T, v T) {
	select {
	case ch <- v:
	default:
	}
}

func drain[T any](ch <-chan T) {
	select {
	case <-ch:
	default:
	}
}
