package waitqueue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// world is one process with one key, a Redis, rivals in other processes, and a network that delays, loses and doubles.
// Time is a number. Its process does what package core does with a queue; the model (model_test.go) watches both.
type world struct {
	rng    *rand.Rand
	now    time.Time
	agenda []event // what happens when
	seq    int

	limit        int
	config       waitqueue.Config
	queue        *waitqueue.Queue // nil: nobody needs one
	redis        *redis
	calm         bool // nothing goes wrong any more, and nobody comes
	unsubscribed bool // messages do not arrive
	lossy        int  // one in so many messages is lost
	hasty        int  // one in so many calls may leave
	tokens       int
	holds        map[*hold]bool // that this process uses
	model        *model
	log          []string
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

// call is a call with its goroutine.
type call struct {
	waitqueue.Call
	id      int
	queue   *waitqueue.Queue
	waits   bool
	rejects bool // its policy refuses it
	decided bool
	gone    bool
	grant   *hold
	request *waitqueue.Request // it waits for the answer
	runs    int                // of its goroutine: a timer is for one
	woken   bool               // it is about to run
	view    waitqueue.Step
}

type hold struct {
	token string
	fence int64
	until time.Time
	since time.Time
	used  int
	ttl   time.Duration
	lost  bool
}

const (
	firstLease = 3 * time.Second
	claim      = time.Second
	fullLease  = 15 * time.Second
	fences     = 8
)

var errOutage = errors.New("redis does not answer")

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 7)), now: time.UnixMilli(1_700_000_000_000), holds: map[*hold]bool{}}
	w.limit = []int{1, 1, 0, 3}[w.rng.IntN(4)]
	w.lossy, w.hasty = []int{12, 2}[w.rng.IntN(2)], []int{8, 2}[w.rng.IntN(2)]
	w.config = waitqueue.Config{
		Ordered:   true,
		Listening: func() bool { return !w.unsubscribed },
		NewToken: func(limit int) string {
			w.tokens++
			return fmt.Sprintf("%d:own.%d", limit, w.tokens)
		},
		Claim:    claim,
		Validity: func(sent time.Time, d time.Duration) time.Time { return sent.Add(d - d/10) },
		Expired:  func(until, now time.Time) bool { return !now.Before(until) },
		Backoff:  func(n int) time.Duration { return min(10*time.Millisecond<<min(n, 5), 250*time.Millisecond) },
		Spread:   func(d time.Duration) time.Duration { return d - d/7 },
		Poll:     time.Second,
		Fences:   fences,
	}
	w.redis = &redis{world: w, holders: map[string]*holder{}}
	w.model = newModel(w)
	return w
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	w.agenda = append(w.agenda, event{w.now.Add(d), w.seq, do})
}

// chance is true once in n, unless the world is calm.
func (w *world) chance(n int) bool { return !w.calm && w.rng.IntN(n) == 0 }

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%8.3f ms  ", float64(w.now.UnixMicro()%10_000_000)/1000)+fmt.Sprintf(format, args...))
}

// step lets the next event happen. It reports false when there is none until end.
func (w *world) step(end time.Time) bool {
	next := -1
	for i, e := range w.agenda {
		if next < 0 || e.at.Before(w.agenda[next].at) || e.at.Equal(w.agenda[next].at) && e.seq < w.agenda[next].seq {
			next = i
		}
	}
	if next < 0 || w.agenda[next].at.After(end) {
		return false
	}
	e := w.agenda[next]
	w.agenda = slices.Delete(w.agenda, next, next+1)
	w.now = e.at
	e.do()
	w.model.check()
	return true
}

// current is the process's queue; keep makes it one.
func (w *world) current(keep bool) *waitqueue.Queue {
	if w.queue != nil {
		return w.queue
	}
	q := &waitqueue.Queue{Config: &w.config, Limit: w.limit}
	if keep {
		w.queue = q
	}
	return q
}

// run does what the queue has decided.
func (w *world) run(q *waitqueue.Queue, released *hold, actions []waitqueue.Action) {
	for _, a := range actions {
		switch a.Kind {
		case waitqueue.Wake:
			w.wake(a.Call.Of.(*call))
		case waitqueue.Give:
			c := a.Call.Of.(*call)
			h := &hold{token: a.Token, fence: a.Fence, until: a.Until, since: w.now, ttl: fullLease}
			w.note("give %d to call %d", h.fence, c.id)
			w.model.given(c, h)
			w.holds[h] = true
			w.renew(h)
			w.hand(c, h)
		case waitqueue.HandOver:
			c := a.Call.Of.(*call)
			w.note("hand %d over to call %d", released.fence, c.id)
			released.used++
			w.model.handedOver(c, released)
			w.hand(c, released)
		case waitqueue.Admit:
			w.admit(q, a.Admission)
		case waitqueue.Cancel:
			w.note("cancel %s", a.Token)
			w.model.cancelled(a.Token)
			w.cancel(a.Token)
		}
	}
	if q.Empty() && w.queue == q {
		w.queue, w.model.contendedFence = nil, 0
	}
}

func (w *world) hand(c *call, h *hold) {
	c.grant = h
	if u := c.request; u != nil {
		w.after(time.Duration(w.rng.IntN(3)/2*w.rng.IntN(3000))*time.Microsecond, func() { // it waits no longer, unless the answer comes first
			if c.request == u {
				w.unanswered(c, waitqueue.Failure{})
				w.proceed(c)
			}
		})
		return
	}
	w.wake(c)
}

func (w *world) wake(c *call) {
	if c.request != nil || c.gone || c.woken {
		return
	}
	c.woken = true
	w.after(time.Duration(w.rng.IntN(50))*time.Microsecond, func() {
		if c.woken {
			w.proceed(c)
		}
	})
}

// join has a new call come.
func (w *world) join() {
	c := &call{id: w.model.arrivals + 1, waits: w.rng.IntN(3) > 0, rejects: w.rng.IntN(12) == 0}
	c.Of, c.Lease, c.Timeout, c.HandOver = c, firstLease, firstLease, fullLease
	if w.rng.IntN(10) == 0 {
		c.HandOver = []time.Duration{0, time.Second}[w.rng.IntN(2)]
	}
	c.queue = w.current(true)
	w.note("call %d joins", c.id)
	w.model.joined(c)
	c.queue.Join(&c.Call)
	w.proceed(c)
	if w.chance(w.hasty) {
		w.mayLeave(c, []int{5, 40, 300}[w.rng.IntN(3)])
	}
}

// mayLeave has a call leave within so many ms, if it still waits.
func (w *world) mayLeave(c *call, within int) {
	w.after(time.Duration(w.rng.IntN(1000*within))*time.Microsecond, func() {
		if !w.calm && !c.gone {
			w.leave(c)
		}
	})
}

// proceed is core's attempt.await.
func (w *world) proceed(c *call) {
	c.woken = false
	c.runs++
	for !c.gone && c.request == nil {
		if c.grant != nil {
			if w.useOrRejoin(c) {
				return
			}
			continue
		}
		v := c.queue.Next(w.now, &c.Call)
		c.view = v
		w.model.looked(c, v)
		switch {
		case v.Err != nil:
			w.leave(c)
			return
		case v.Ask:
			w.ask(c, v.Request)
			return
		case v.Informed && !c.decided:
			c.decided = true
			if c.rejects {
				w.leave(c)
				return
			}
			if !c.waits {
				c.waits = true
				c.queue.AskNow()
				continue
			}
		}
		if v.Refresh != "" {
			w.refresh(v.Refresh)
		}
		pause := time.Hour
		if c.id%4 == 0 {
			pause = time.Duration(1+w.rng.IntN(100)) * time.Millisecond // then its policy decides again
		}
		if !v.Informed {
			pause = firstLease
		}
		if v.AskIn >= 0 {
			pause = min(pause, v.AskIn)
		}
		run := c.runs
		w.after(pause, func() {
			if c.runs == run {
				w.proceed(c)
			}
		})
		return
	}
}

// useOrRejoin has a call use its grant, unless that was lost: then it queues again.
func (w *world) useOrRejoin(c *call) (uses bool) {
	h := c.grant
	c.grant = nil
	late := w.chance(2) // word of the loss comes after the call has seen it
	if w.chance(40) && !h.lost {
		delete(w.redis.holders, h.token)
		h.lost = true
		delete(w.holds, h)
		if !late {
			w.lost(h)
		}
	}
	if !h.lost {
		w.use(c, h)
		return true
	}
	w.note("call %d rejoins", c.id)
	c.queue = w.current(true)
	c.queue.Rejoin(&c.Call, h.fence)
	w.model.rejoined(c, h)
	if late {
		w.lost(h)
	}
	if w.chance(2) {
		w.mayLeave(c, 3)
	}
	return false
}

func (w *world) leave(c *call) {
	w.note("call %d leaves", c.id)
	if c.request != nil {
		w.unanswered(c, waitqueue.Failure{})
	}
	c.gone = true
	w.model.left(c)
	w.run(c.queue, nil, c.queue.Leave(&c.Call))
	if h := c.grant; h != nil {
		c.grant = nil
		w.release(h)
	}
}

// use holds the key for a while.
func (w *world) use(c *call, h *hold) {
	c.gone = true
	work := []time.Duration{0, time.Microsecond, time.Millisecond, 3 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 2 * time.Second}
	if w.calm {
		work = work[:4]
	}
	w.after(work[w.rng.IntN(len(work))], func() {
		if !h.lost {
			w.release(h)
		}
	})
}

// unsubscribe ends the subscription for a while, again and again.
func (w *world) unsubscribe() {
	w.after(time.Duration(w.rng.IntN(2000))*time.Millisecond, func() {
		if w.calm {
			return
		}
		w.note("unsubscribed")
		w.unsubscribed = true
		w.after(time.Duration(w.rng.IntN(1500))*time.Millisecond, func() {
			w.subscribe()
			w.unsubscribe()
		})
	})
}

// subscribe is core's waiters.askAgain, after the subscription was made anew.
func (w *world) subscribe() {
	if !w.unsubscribed {
		return
	}
	w.note("subscribed")
	w.unsubscribed = false
	if w.queue != nil {
		w.run(w.queue, nil, w.queue.AskAgain())
	}
}
