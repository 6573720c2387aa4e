package waitqueue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// world is one process with one key, a Redis, rivals in other processes, and a network that
// delays, loses and doubles. Time is a number. Its process does what package core does with a
// queue; the model (model_test.go) watches both.
type world struct {
	rng    *rand.Rand
	now    time.Time
	agenda []event // what happens when
	seq    int

	limit  int
	config waitqueue.Config
	queue  *waitqueue.Queue // nil: nobody needs one
	redis  *redis
	calm   bool // nothing goes wrong any more, and nobody comes
	lossy  int  // one in so many messages is lost
	hasty  int  // one in so many calls may leave
	tokens int
	holds  map[*hold]bool // that this process uses
	model  *model
	log    []string
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

// call is a call with its goroutine.
type call struct {
	waitqueue.Call
	id       int
	queue    *waitqueue.Queue
	waits    bool
	rejects  bool // its policy refuses it
	decided  bool
	gone     bool
	grant    *hold
	question *waitqueue.Question // it waits for the answer
	runs     int                 // of its goroutine: a timer is for one
	woken    bool                // it is about to run
	view     waitqueue.View
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
		Listening: func() bool { return w.rng.IntN(10) > 0 },
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

// way is how long a message travels: long enough for the server's clock, in ms, to move.
func (w *world) way() time.Duration {
	if w.chance(15) {
		return time.Duration(w.rng.IntN(2000)) * time.Millisecond
	}
	return time.Millisecond + time.Duration(w.rng.IntN(3000))*time.Microsecond
}

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
		w.queue = nil
	}
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
	w.send(tokens, func() { w.redis.admit(a.Leader, tokens, fences) }, func(err error) {
		f := waitqueue.Failure{}
		if err != nil {
			f.Err = errOutage
		}
		w.note("admitted: %d %v", fences, err)
		w.model.admitted(a, fences, f)
		w.run(q, nil, q.Admitted(w.now, a, fences, f))
	})
}

func (w *world) hand(c *call, h *hold) {
	c.grant = h
	if u := c.question; u != nil {
		w.after(time.Duration(w.rng.IntN(3)/2*w.rng.IntN(3000))*time.Microsecond, func() { // it waits no longer, unless the answer comes first
			if c.question == u {
				w.giveUp(c, waitqueue.Failure{})
				w.proceed(c)
			}
		})
		return
	}
	w.wake(c)
}

func (w *world) wake(c *call) {
	if c.question != nil || c.gone || c.woken {
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
	for !c.gone && c.question == nil {
		if h := c.grant; h != nil {
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
				return
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
			continue
		}
		v := c.queue.Look(w.now, &c.Call)
		c.view = v
		w.model.looked(c, v)
		switch {
		case v.Err != nil:
			w.leave(c)
			return
		case v.Ask:
			w.ask(c, v.Question)
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

func (w *world) leave(c *call) {
	w.note("call %d leaves", c.id)
	if c.question != nil {
		w.giveUp(c, waitqueue.Failure{})
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

// lost tells the queue of a hold that is lost.
func (w *world) lost(h *hold) {
	w.note("lost %d", h.fence)
	w.model.ended(h)
	if q := w.queue; q != nil {
		w.run(q, nil, q.Lost(h.fence))
	}
	w.cancel(h.token) // the release of a lost lease
}

// release is core's Locker.giveUp.
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
		w.model.asked(r.Token)
	}
	var a answer
	sent := w.now
	w.send([]string{h.token, r.Token}, func() { a = w.redis.release(h.token, r.Token, r.Waits != nil) }, func(err error) {
		if err != nil {
			w.cancel(h.token)
			a = answer{}
		}
		w.note("released %d: %+v %v", h.fence, a, err)
		if r.Waits == nil {
			q := w.current(false)
			w.run(q, nil, q.Freed(w.now, r, err))
			return
		}
		w.model.answered(r.Token)
		w.model.orphaned(r.Token, a.fence, a.server)
		q := w.current(false)
		if err == nil && a.fence == 0 && q.Token() == r.Token && q.Len() > 0 {
			w.model.inform(a.length > min(a.place, 1))
		}
		w.run(q, nil, q.ReleaseAnswered(w.now, a.fence, &waitqueue.Refusal{
			Token: r.Token, Sent: sent, Server: a.server, Place: a.place, Length: a.length,
		}, err))
	})
}

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

// refresh is core's waiters.refresh.
func (w *world) refresh(token string) {
	var a answer
	sent := w.now
	w.send(nil, func() { a = w.redis.refresh(token) }, func(err error) {
		w.note("refreshed %s: %+v %v", token, a, err)
		q := w.current(false)
		w.run(q, nil, q.Refreshed(w.now, &waitqueue.Refusal{
			Token: token, Sent: sent, Remaining: a.remaining, Server: a.server, Place: a.place, Length: a.length,
		}, waitqueue.Failure{Err: err, Unsent: w.chance(2)}))
	})
}

// ask is core's attempt.question.
func (w *world) ask(c *call, u waitqueue.Question) {
	w.note("call %d asks about %s", c.id, u.Token)
	w.model.asked(u.Token)
	c.question = &u
	mine := c.question
	waits := c.waits
	switch {
	case w.chance(40):
		w.after(0, func() {
			if c.question == mine {
				w.giveUp(c, waitqueue.Failure{Err: errOutage, Unsent: true})
				w.proceed(c)
			}
		})
		return
	case w.chance(40):
		w.after(0, func() {
			if c.question == mine {
				w.orphaned(u.Token, 0, 0)
				w.giveUp(c, waitqueue.Failure{Err: errOutage, Local: true})
				w.leave(c)
			}
		})
		return
	}
	w.after(u.Timeout, func() {
		if c.question == mine {
			w.giveUp(c, waitqueue.Failure{Err: errOutage})
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
		if c.question != mine {
			w.note("orphaned %s: %+v", u.Token, a)
			w.orphaned(u.Token, a.fence, a.server)
			return
		}
		w.note("answer to call %d: %+v %v", c.id, a, err)
		until := w.config.Validity(u.Sent, firstLease)
		if err != nil || a.fence != 0 && w.config.Expired(until, w.now) {
			w.orphaned(u.Token, a.fence, a.server)
			w.giveUp(c, waitqueue.Failure{Err: errOutage})
			w.afterFailure(c)
			return
		}
		c.question = nil
		w.model.answered(u.Token)
		if a.fence != 0 {
			w.model.room = a.room
			w.run(c.queue, nil, c.queue.Granted(w.now, &c.Call, waitqueue.Grant{Token: u.Token, Fence: a.fence, Wanted: a.wanted, Room: a.room, Until: until}))
		} else {
			w.model.inform(a.length > min(a.place, 1))
			w.run(c.queue, nil, c.queue.Refused(w.now, &c.Call, &waitqueue.Refusal{
				Token: u.Token, Sent: u.Sent, Polls: w.rng.IntN(20) == 0,
				Remaining: a.remaining, Server: a.server, Place: a.place, Length: a.length,
			}))
		}
		w.proceed(c)
	})
}

// afterFailure goes on with a call whose question failed: if it was informed it waits on.
func (w *world) afterFailure(c *call) {
	if c.view.Informed {
		w.proceed(c)
		return
	}
	w.leave(c)
}

func (w *world) giveUp(c *call, f waitqueue.Failure) {
	u := c.question
	c.question = nil
	w.note("call %d gives up: %+v", c.id, f)
	w.model.answered(u.Token)
	w.model.failed(f)
	w.run(c.queue, nil, c.queue.GaveUp(w.now, u, f))
}

func (w *world) orphaned(token string, fence, server int64) {
	w.model.orphaned(token, fence, server)
	q := w.current(false)
	w.run(q, nil, q.Orphaned(token, fence, server))
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

// grantMessage takes a message from Redis.
func (w *world) grantMessage(token string, fence, ends int64, wanted, room bool) {
	if w.chance(w.lossy) {
		w.note("lost is the message of %s, %d", token, fence)
		return
	}
	for range 1 + w.rng.IntN(12)/11 {
		w.after(w.way(), func() {
			if q := w.queue; q != nil && q.Token() == token {
				w.note("message: granted %s, %d", token, fence)
				w.model.room = room
				w.run(q, nil, q.GrantMessage(w.now, w.now, waitqueue.Grant{Token: token, Fence: fence, Wanted: wanted, Room: room}, ends))
			}
		})
	}
}

// redis has the key.
type redis struct {
	*world
	holders map[string]*holder
	fifo    []string
	fence   int64
	rivals  int
}

type holder struct {
	ends  time.Time
	fence int64
}

type answer struct {
	fence     int64
	wanted    bool
	room      bool
	remaining time.Duration
	server    int64
	place     int
	length    int
}

func own(token string) bool { return strings.Contains(token, ":own.") }

func limitOf(token string) int {
	digits, _, _ := strings.Cut(token, ":")
	n, _ := strconv.Atoi(digits)
	return n
}

func (r *redis) fits(limit int) bool {
	for token := range r.holders {
		if limitOf(token) == 1 {
			return false
		}
	}
	return len(r.holders) == 0 || limit != 1 && (limit == 0 || len(r.holders) < limit)
}

func (r *redis) grant(token string, lease time.Duration) int64 {
	r.fence = max(r.fence+1, r.now.UnixMicro())
	r.holders[token] = &holder{r.now.Add(lease), r.fence}
	return r.fence
}

func (r *redis) sweep() {
	for token, h := range r.holders {
		if !h.ends.After(r.now) {
			delete(r.holders, token)
		}
	}
}

// serve grants the key to those at the head who fit, up to me.
func (r *redis) serve(me string) bool {
	for len(r.fifo) > 0 && r.fits(limitOf(r.fifo[0])) {
		token := r.fifo[0]
		r.fifo = r.fifo[1:]
		if token == me {
			return true
		}
		fence := r.grant(token, claim)
		if own(token) {
			r.grantMessage(token, fence, r.now.Add(claim).UnixMilli(), len(r.fifo) > 0, r.room(token))
		} else {
			r.model.seen = fence
			r.after(r.work(), func() { r.release(token, "", false) })
		}
	}
	return false
}

// work is how long a rival holds the key.
func (r *redis) work() time.Duration {
	return time.Duration([]int{0, 1, 5, 20}[r.rng.IntN(4)]) * time.Millisecond
}

func (r *redis) acquire(token string, waits bool) (a answer) {
	r.sweep()
	if h := r.holders[token]; h != nil {
		h.ends = r.now.Add(firstLease)
		return answer{fence: h.fence, wanted: len(r.fifo) > 0}
	}
	if r.serve(token) || len(r.fifo) == 0 && r.fits(limitOf(token)) {
		return answer{fence: r.grant(token, firstLease), wanted: len(r.fifo) > 0, room: r.room(token)}
	}
	if waits && !slices.Contains(r.fifo, token) {
		r.fifo = append(r.fifo, token)
	}
	for _, h := range r.holders {
		a.remaining = h.ends.Sub(r.now)
	}
	a.server, a.place, a.length = r.now.UnixMilli(), slices.Index(r.fifo, token)+1, len(r.fifo)
	return a
}

// refresh tells of a token's place, unless the key can be had.
func (r *redis) refresh(token string) (a answer) {
	for _, h := range r.holders {
		a.remaining = max(a.remaining, h.ends.Sub(r.now))
	}
	a.server, a.length = r.now.UnixMilli(), len(r.fifo)
	if a.remaining > 0 {
		a.place = slices.Index(r.fifo, token) + 1
	}
	return a
}

func (r *redis) release(token, other string, waits bool) (a answer) {
	mine := r.holders[token] != nil
	delete(r.holders, token)
	drop := func(token string) {
		r.fifo = slices.DeleteFunc(r.fifo, func(t string) bool { return t == token })
	}
	if !mine {
		drop(token)
	}
	r.sweep()
	switch h := r.holders[other]; {
	case waits && h != nil:
		a.fence = h.fence
	case waits && !slices.Contains(r.fifo, other):
		r.fifo = append(r.fifo, other)
	case !waits && other != "":
		drop(other)
	}
	if r.serve(other) {
		a.fence = r.grant(other, claim)
	}
	a.server, a.place, a.length = r.now.UnixMilli(), slices.Index(r.fifo, other)+1, len(r.fifo)
	return a
}

// room reports whether one more like token can hold the key.
func (r *redis) room(token string) bool {
	return len(r.fifo) == 0 && limitOf(token) > 1 && r.fits(limitOf(token))
}

// admit grants the key to tokens beside a holder, past others if they are readers.
func (r *redis) admit(leader string, tokens []string, fences []int64) {
	r.sweep()
	if r.holders[leader] == nil {
		return
	}
	r.serve("")
	for i, token := range tokens {
		if r.fits(limitOf(token)) && (limitOf(token) == 0 || len(r.fifo) == 0) {
			fences[i] = r.grant(token, firstLease)
		}
	}
}

func (r *redis) renew(token string, fence int64) bool {
	r.sweep()
	h := r.holders[token]
	if h == nil || h.fence != fence {
		return false
	}
	h.ends = r.now.Add(fullLease)
	return true
}

// rival is a call of another process.
func (r *redis) rival() {
	r.rivals++
	token := fmt.Sprintf("%d:rival.%d", []int{1, 0, 3}[r.rng.IntN(3)], r.rivals)
	if fence := r.acquire(token, true).fence; fence != 0 {
		r.model.seen = fence
		r.after(r.work(), func() { r.release(token, "", false) })
		return
	}
	for holder := range r.holders {
		if own(holder) && limitOf(holder) == 1 {
			r.after(r.way(), func() {
				if r.queue != nil {
					r.model.rivalKnown = true
					r.queue.Wanted()
				}
			})
		}
	}
}

// forget loses all of Redis's data.
func (r *redis) forget() {
	r.note("redis forgets")
	r.fifo = nil
	clear(r.holders)
}
