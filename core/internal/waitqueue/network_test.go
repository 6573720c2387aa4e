package waitqueue_test

import (
	"time"

	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// send has Redis run a command that concerns tokens of ours, and then reply called: with an
// error if the request or its reply is lost.
func (w *world) send(tokens []string, run func(), reply func(error)) {
	done := w.model.underWay(tokens...)
	fail := func() {
		w.after(time.Duration(1+w.rng.IntN(1000))*time.Millisecond, func() { done(); reply(errOutage) })
	}
	if w.chance(20) {
		fail()
		return
	}
	w.after(w.way(), func() {
		run()
		if w.chance(20) {
			fail()
			return
		}
		w.after(w.way(), func() { done(); reply(nil) })
	})
}

// way is how long a message travels: long enough for the server's clock, in ms, to move.
func (w *world) way() time.Duration {
	if w.chance(15) {
		return time.Duration(w.rng.IntN(2000)) * time.Millisecond
	}
	return time.Millisecond + time.Duration(w.rng.IntN(3000))*time.Microsecond
}

// ask is core's attempt.request.
func (w *world) ask(c *call, u waitqueue.Request) {
	w.note("call %d asks about %s", c.id, u.Token)
	w.model.inFlight(u.Token, u.Fresh)
	c.request = &u
	mine := c.request
	waits, polls := c.waits, w.unsubscribed
	switch {
	case w.chance(40):
		w.after(0, func() {
			if c.request == mine {
				w.unanswered(c, waitqueue.Failure{Err: errOutage, Unsent: true})
				w.proceed(c)
			}
		})
		return
	case w.chance(40):
		w.after(0, func() {
			if c.request == mine {
				w.orphaned(u.Token, answer{})
				w.unanswered(c, waitqueue.Failure{Err: errOutage, Local: true})
				w.leave(c)
			}
		})
		return
	}
	w.after(u.Timeout, func() {
		if c.request == mine {
			w.unanswered(c, waitqueue.Failure{Err: errOutage})
			w.afterFailure(c)
		}
	})
	var a answer
	w.send([]string{u.Token}, func() {
		a = w.redis.acquire(u.Token, waits)
		if w.chance(20) {
			a = w.redis.acquire(u.Token, waits) // go-redis has sent it again
		}
	}, func(err error) {
		if err != nil {
			a = answer{}
		}
		if c.request != mine {
			w.note("orphaned %s: %+v", u.Token, a)
			w.orphaned(u.Token, a)
			return
		}
		w.note("answer to call %d: %+v %v", c.id, a, err)
		w.answered(c, &u, a, err, polls)
	})
}

// answered goes on with a call whose request has come back.
func (w *world) answered(c *call, u *waitqueue.Request, a answer, err error, polls bool) {
	until := w.config.Validity(u.Sent, firstLease)
	if err != nil || a.fence != 0 && w.config.Expired(until, w.now) {
		w.orphaned(u.Token, a)
		w.unanswered(c, waitqueue.Failure{Err: errOutage})
		w.afterFailure(c)
		return
	}
	c.request = nil
	w.model.answered(u.Token)
	if a.fence != 0 {
		w.model.room, w.model.wanted = a.room, a.wanted
		w.run(c.queue, nil, c.queue.Granted(w.now, &c.Call, waitqueue.Grant{Token: u.Token, Fence: a.fence, Wanted: a.wanted, Room: a.room, Until: until}))
	} else {
		w.model.refused(u.Token, u.Sent, a)
		w.run(c.queue, nil, c.queue.Refused(w.now, &c.Call, &waitqueue.Refusal{
			Token: u.Token, Sent: u.Sent, Polls: polls,
			Remaining: a.remaining, Server: a.server, Latest: a.latest, Place: a.place, Length: a.length,
		}))
	}
	w.proceed(c)
}

// afterFailure goes on with a call whose request failed: if it was informed it waits on.
func (w *world) afterFailure(c *call) {
	if c.view.Informed {
		w.proceed(c)
		return
	}
	w.leave(c)
}

func (w *world) unanswered(c *call, f waitqueue.Failure) {
	u := c.request
	c.request = nil
	w.note("call %d waits no longer for its answer: %+v", c.id, f)
	w.model.answered(u.Token)
	w.model.failed(f)
	w.run(c.queue, nil, c.queue.Unanswered(w.now, u, f))
}

func (w *world) orphaned(token string, a answer) {
	w.model.orphaned(token, a)
	q := w.current(false)
	w.run(q, nil, q.Orphaned(token, a.fence, a.latest, a.server))
}

// refresh is core's waiters.refresh.
func (w *world) refresh(token string) {
	var a answer
	sent := w.now
	w.send(nil, func() { a = w.redis.refresh(token) }, func(err error) {
		if err != nil {
			a = answer{}
		}
		f := waitqueue.Failure{Err: err, Unsent: err != nil && w.chance(2)}
		w.note("refreshed %s: %+v %+v", token, a, f)
		w.model.refreshAnswered(token, sent, a, f)
		q := w.current(false)
		w.run(q, nil, q.Refreshed(w.now, &waitqueue.Refusal{
			Token: token, Sent: sent, Remaining: a.remaining, Server: a.server, Place: a.place, Length: a.length,
		}, f))
	})
}

// admit asks Redis whether calls are admitted beside a holder.
func (w *world) admit(q *waitqueue.Queue, a *waitqueue.Admission) {
	w.note("admit %d beside %s", len(a.Calls), a.Leader)
	var tokens []string
	for _, m := range a.Calls {
		tokens = append(tokens, m.Token)
	}
	w.model.admits(a)
	fences := make([]int64, len(a.Calls))
	w.send(tokens, func() { w.redis.admit(a.Leader, a.Fence, tokens, fences) }, func(err error) {
		f := waitqueue.Failure{}
		if err != nil {
			f.Err = errOutage
		}
		w.note("admitted: %d %v", fences, err)
		w.model.admitted(a, fences, f)
		w.run(q, nil, q.Admitted(w.now, a, fences, f))
	})
}

// grantMessage takes a message from Redis.
func (w *world) grantMessage(token string, fence, ends int64, wanted, room bool) {
	if w.chance(w.lossy) {
		w.note("lost is the message of %s, %d", token, fence)
		return
	}
	for range 1 + w.rng.IntN(12)/11 {
		w.after(w.way(), func() {
			if q := w.queue; q != nil && q.Token() == token && !w.unsubscribed {
				w.note("message: granted %s, %d", token, fence)
				w.model.room, w.model.wanted = room, wanted
				w.run(q, nil, q.GrantMessage(w.now, w.now, waitqueue.Grant{Token: token, Fence: fence, Wanted: wanted, Room: room}, ends))
			}
		})
	}
}

// release is core's Locker.releaseHold.
func (w *world) release(h *hold) {
	if h.lost {
		return
	}
	q, r := w.queue, waitqueue.Release{}
	if w.limit == 1 && q != nil {
		held := waitqueue.Held{Fence: h.fence, Used: h.used, TTL: h.ttl, Age: w.now.Sub(h.since)}
		if w.chance(10) {
			held.TTL = 0 // reserved
		}
		w.model.released(h, held)
		var handOver []waitqueue.Action
		r, handOver = q.Released(w.now, held)
		w.run(q, h, handOver)
		if len(handOver) > 0 {
			return
		}
	}
	w.note("release %d with %+v", h.fence, r)
	delete(w.holds, h)
	w.model.ended(h)
	if r.Waits != nil {
		w.model.inFlight(r.Token, r.Fresh)
	}
	var a answer
	sent, polls := w.now, w.unsubscribed
	w.send([]string{h.token, r.Token}, func() {
		if r.Waits == nil || !w.chance(20) {
			a = w.redis.release(h.token, r.Token, r.Waits != nil)
			return
		}
		a = answer{owned: w.redis.release(h.token, "", false).owned, place: -1} // it came late
	}, func(err error) {
		if err != nil {
			w.cancel(h.token)
			a = answer{}
		}
		w.note("released %d: %+v %v", h.fence, a, err)
		if r.Waits == nil {
			q := w.current(false)
			w.run(q, nil, q.Freed(w.now, r, a.owned))
			return
		}
		w.model.answered(r.Token)
		w.model.orphaned(r.Token, a)
		q := w.current(false)
		if err == nil && a.fence == 0 && a.place >= 0 && q.Token() == r.Token && q.Len() > 0 {
			w.model.refused(r.Token, sent, a)
		}
		w.model.wanted = a.length > 0
		w.run(q, nil, q.ReleaseAnswered(w.now, a.fence, &waitqueue.Refusal{
			Token: r.Token, Sent: sent, Polls: polls, Server: a.server, Latest: a.latest, Place: a.place, Length: a.length,
		}, err))
	})
}

// lost tells the queue of a hold that is lost.
func (w *world) lost(h *hold) {
	w.note("lost %d", h.fence)
	w.model.ended(h)
	if q := w.queue; q != nil {
		w.run(q, nil, q.Lost(h.fence))
	}
	w.cancel(h.token) // the release of a lost lease
}

// renew keeps a hold, or finds it lost.
func (w *world) renew(h *hold) {
	w.after(claim/3, func() {
		if !w.holds[h] {
			return
		}
		if w.redis.renew(h.token, h.fence) {
			w.renew(h)
			return
		}
		h.lost = true
		delete(w.holds, h)
		w.lost(h)
	})
}

// cancel is sent again until Redis has it.
func (w *world) cancel(token string) {
	done := w.model.underWay(token)
	d := w.way()
	if w.chance(10) {
		d += 100 * time.Millisecond
	}
	w.after(d, func() {
		done()
		w.redis.release(token, "", false)
	})
}
