package core

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/trust"
)

// waiters keeps the calls of this process that wait for keys: one line for each
// key and limit, in order of arrival. A line has at most one entry in Redis's
// queue, and only its first call asks Redis.
//
// While this process holds a key, its line does not ask at all: the release passes
// the key on to the first in line without Redis, as long as others need not wait too
// long for it (lock cohorting: Dice, Marathe & Shavit, 2012).
type waiters struct {
	locker *Locker
	pool   sync.Pool // of waiters

	mu      sync.Mutex
	lines   map[lineKey]*line
	waiting int // calls in all lines
	// Entries that a message granted while a question about them was under way:
	// its answer is no news. With the grants' fences.
	accepted map[string]int64

	notify map[string][]notification
	swept  time.Time
	// Counts announcements, of all keys that share a hash. A call that meets a
	// conflict registers only after Redis answered: if the count moved meanwhile,
	// what was announced may have been its key.
	announced [256]uint64
	seed      maphash.Seed
}

type lineKey struct {
	key   string
	limit int
}

type line struct {
	lineKey
	first, last *waiter
	n           int

	entry string // ours in Redis's queue, as far as we know; else ""
	// When entry was last sent for, and the server's clock in ms as it answered:
	// zero while there is no answer. A grant to entry is newer than sent.
	sent   time.Time
	server int64

	asking bool
	asks   int       // since the line was last granted the key
	askAt  time.Time // when to ask again
	held   *hold     // an exclusive hold of this process: its release passes it on
	wanted bool      // calls of other processes wait too

	until  time.Time // when the holder's lease ends, as told at the last conflict
	queued int       // length of Redis's queue
	place  int       // of entry in it, from 1
}

// waiter is a call in line. Only its own goroutine uses it, but for grant.
type waiter struct {
	all        *waiters
	line       *line
	prev, next *waiter
	inLine     bool
	opts       *acquireOptions
	wake       chan struct{} // holds one
	timer      *time.Timer
	grant      *hold // guarded by all.mu: passed to this call
}

type notification struct {
	ch    chan<- string
	until time.Time
}

const (
	// For how long, from when it was taken, and how often a key is passed on within
	// the process while calls of others wait. The number is for a fair share of
	// processes that are not equally fast.
	passWanted     = time.Millisecond
	passWantedMost = 256
	// The same while nobody is known to wait: word of a waiter may have been lost.
	passAlone     = 50 * time.Millisecond
	passAloneMost = fenceBlock - 1

	// How often a line asks while nobody could wake it.
	pollMin = 10 * time.Millisecond
	pollMax = 250 * time.Millisecond
	// Those far back in the queue ask less often, up to this many poll floors.
	maxPollFloors = 5
)

func newWaiters(l *Locker) *waiters {
	return &waiters{locker: l, pool: sync.Pool{New: newWaiter}, lines: map[lineKey]*line{}, accepted: map[string]int64{}, notify: map[string][]notification{}, seed: maphash.MakeSeed()}
}

func newWaiter() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &waiter{wake: make(chan struct{}, 1), timer: timer}
}

// join puts a call at the end of the line for key. It returns nil when there are
// too many.
func (w *waiters) join(key string, o *acquireOptions) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := lineKey{key, o.limit}
	ln := w.lines[k]
	if ln != nil && ln.n >= w.locker.maxPerKey || w.waiting >= w.locker.maxWaiters {
		return nil
	}
	if ln == nil {
		ln = &line{lineKey: k}
		w.lines[k] = ln
	}
	c := w.pool.Get().(*waiter)
	c.all, c.line, c.opts = w, ln, o
	ln.push(c)
	w.waiting++
	return c
}

// leave takes the call out of line. What was passed to it and not taken goes on to
// the next.
func (c *waiter) leave() {
	w := c.all
	w.mu.Lock()
	unused := c.grant
	if c.inLine {
		ln := c.line
		wasFirst := ln.first == c
		w.remove(c)
		if ln.first == nil {
			w.close(ln)
		} else if wasFirst {
			if ln.limit != 1 && ln.entry != "" {
				// It may have been granted already, and others with it: to a call
				// that came later its fence could be smaller than one seen before.
				w.drop(ln.key, ln.entry)
				ln.entry, ln.askAt = "", time.Time{}
			}
			ln.first.poke()
		}
	}
	w.mu.Unlock()
	select { // nobody pokes it any more
	case <-c.wake:
	default:
	}
	c.all, c.line, c.opts, c.grant = nil, nil, nil, nil
	w.pool.Put(c)
	if unused != nil {
		w.locker.later(func() { _, _ = w.locker.giveUp(context.Background(), unused, 0, time.Now()) })
	}
}

// rejoin puts a call that got a hold which has ended back at the head of its line. The
// hold may have ended just before it was passed: then nobody else clears held.
func (c *waiter) rejoin(h *hold) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := w.lines[c.line.lineKey]
	if ln == nil {
		ln = &line{lineKey: c.line.lineKey}
		w.lines[ln.lineKey] = ln
	}
	c.line = ln
	if ln.held == h {
		ln.held = nil
	}
	ln.askAt = time.Time{}
	ln.unshift(c)
	w.waiting++
}

// sendAway waits, but not for long, until the calls in line have seen that the
// Locker is closing: those that left before it is closed give up their places in
// Redis's queues.
func (w *waiters) sendAway() {
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

// remove takes a waiting call out of its line. Called with mu held.
func (w *waiters) remove(c *waiter) {
	c.line.remove(c)
	w.waiting--
}

// close ends a line in which nobody is left. Called with mu held.
func (w *waiters) close(ln *line) {
	if ln.held != nil && ln.entry != "" {
		return // its release takes the entry along
	}
	delete(w.lines, ln.lineKey)
	if entry := ln.entry; entry != "" {
		ln.entry = ""
		w.drop(ln.key, entry)
	}
}

// drop has Redis forget an entry, whatever it has.
func (w *waiters) drop(key, entry string) {
	l := w.locker
	l.background(func() {
		l.cancel(l.cancels, releaseRequest{record: recordName(l.prefix, key), entry: entry}, firstLease)
	})
}

// taken returns what was passed to the call, once.
func (c *waiter) taken() *hold {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	h := c.grant
	c.grant = nil
	return h
}

func (c *waiter) hasGrant() bool {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return c.grant != nil
}

// turn is a call's turn to ask Redis.
type turn struct {
	entry string
	mark  any
	sent  time.Time
}

// turn lets the call ask if it is its turn, for entry, with join set if it is to be
// put in Redis's queue. Else it says how long to wait for that: negative when it
// will be woken for it.
func (c *waiter) turn(now time.Time, join bool) (t turn, wait time.Duration, ok bool) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := c.line
	if ln.first != c || ln.held != nil || ln.asking {
		return t, -1, false
	}
	if wait = ln.askAt.Sub(now); wait > 0 {
		return t, wait, false
	}
	t = turn{mark: notQueued, sent: now}
	if join {
		t.mark = w.locker.mark()
	}
	if ln.entry == "" {
		ln.entry = newEntry(ln.limit, w.locker.id)
		ln.sent, ln.server = now, 0
	}
	t.entry = ln.entry
	ln.asking = true
	return t, 0, true
}

// settle ends a question about an entry. It reports whether a message has granted it
// meanwhile. If so, and the answer is a grant with another fence, the question came to
// Redis only after that grant was released: nobody has use for the new one. Called
// with mu held.
func (w *waiters) settle(key, entry string, fence int64) (accepted bool) {
	told, accepted := w.accepted[entry]
	delete(w.accepted, entry)
	if accepted && fence != 0 && fence != told {
		w.drop(key, entry)
	}
	return accepted
}

// refused records a conflict.
func (c *waiter) refused(t turn, reply acquireReply) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := c.line
	ln.asking = false
	if w.settle(ln.key, t.entry, 0) {
		return
	}
	ln.noted(t.sent, reply.server, reply.place, reply.queued, reply.remaining)
	ln.poll(w.locker, t.mark)
}

// granted records a grant as the answer to the call's own question. It reports
// false when the Locker is closed.
func (c *waiter) granted(record string, t turn, reply acquireReply, deadline time.Time) bool {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := c.line
	ln.asking = false
	if w.settle(ln.key, t.entry, reply.fence) {
		return true
	}
	ln.entry = ""
	h := w.locker.newHold(record, t.entry, ln.limit, reply.fence, deadline, c.opts)
	if !w.locker.renewals.add(h) {
		return false
	}
	w.give(ln, c, h, reply.waiting)
	return true
}

// dropped records that the question was given up: its entry will be cancelled when
// the answer comes.
func (c *waiter) dropped(t turn) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := c.line
	ln.asking = false
	if ln.entry == t.entry {
		ln.entry = ""
	}
	if ln.first != nil {
		ln.first.poke()
	}
}

// orphaned deals with the answer to a question that was given up.
// Its fence is zero if it was no grant.
func (w *waiters) orphaned(key, entry string, fence int64) {
	w.mu.Lock()
	accepted := w.settle(key, entry, fence)
	w.mu.Unlock()
	if !accepted {
		w.locker.cancel(w.locker.cancels, releaseRequest{record: recordName(w.locker.prefix, key), entry: entry}, firstLease)
	}
}

// orphanedAll deals with the answer to a question for several keys that was given up.
func (w *waiters) orphanedAll(keys []string, entry string) {
	for end := time.Now().Add(firstLease); len(keys) > 0 && time.Now().Before(end); keys = keys[1:] {
		w.orphaned(keys[0], entry, 0)
	}
}

// give passes a new hold to a call of the line. Called with mu held.
func (w *waiters) give(ln *line, c *waiter, h *hold, waiting bool) {
	w.remove(c)
	c.grant = h
	ln.asks, ln.askAt = 0, time.Time{}
	ln.wanted = waiting
	if ln.limit == 1 {
		ln.held = h
	} else if ln.first != nil {
		ln.first.poke() // may hold it too
	}
	if ln.first == nil && ln.entry == "" {
		delete(w.lines, ln.lineKey)
	}
}

// told takes a grant that was published, or came with the answer to a release: to
// the entry of that name, not before since. A published one says when the claim ends
// on the server's clock, in ms.
func (w *waiters) told(name, key string, fence int64, waiting bool, since time.Time, ends int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := w.lines[lineKey{key, limitOf(name)}]
	if ln == nil || ln.entry == "" || named(ln.entry) != name {
		return // whoever dropped the entry has it cancelled
	}
	deadline := trust.Until(since, claimLease)
	if ends != 0 {
		deadline = earlier(deadline, ln.trusts(ends))
	}
	c := ln.first
	if c == nil || trust.Passed(deadline, time.Now()) {
		// This process was stopped, or the message late: Redis knows whether the
		// grant still stands.
		ln.askAt = time.Time{}
		if c != nil {
			c.poke()
		}
		return
	}
	h := w.locker.newHold(recordName(w.locker.prefix, key), ln.entry, ln.limit, fence, deadline, c.opts)
	if !w.locker.renewals.add(h) {
		return
	}
	if ln.asking {
		w.accepted[ln.entry] = fence
	}
	ln.entry = ""
	w.give(ln, c, h, waiting)
	c.poke()
}

// trusts is how long a claim can be relied on that ends at ends on the server's
// clock. It was granted after the line's question was sent; and when that was sent
// the server's clock had not passed what the answer told.
func (ln *line) trusts(ends int64) time.Time {
	if ln.server == 0 {
		return trust.Until(ln.sent, claimLease)
	}
	return trust.Until(ln.sent, time.Duration(ends-ln.server)*time.Millisecond)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// pass gives a hold whose lease was released to the next call in line, if it may.
func (w *waiters) pass(h *hold, now time.Time) bool {
	if h.mode() != exclusive || h.bounded() || h.travels.Load() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := w.lines[lineKey{h.key(), 1}]
	if ln == nil || ln.first == nil {
		return false
	}
	budget, most := passAlone, int64(passAloneMost)
	if ln.wanted || h.waiting.Load() {
		budget, most = passWanted, passWantedMost
	}
	c := ln.first
	if c.opts.ttl != h.ttl || c.opts.bounded() || h.used >= min(most, w.locker.fences-1) || now.Sub(h.since) > budget {
		return false
	}
	w.remove(c)
	h.used++
	c.grant = h
	ln.held = h
	c.poke()
	return true
}

// depart prepares the release of a hold in Redis: the line's own entry goes along,
// to wait for the key again or, when nobody is left, to leave the queue.
func (w *waiters) depart(h *hold, req *releaseRequest) {
	if h.mode() != exclusive {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := w.lines[lineKey{h.key(), 1}]
	if ln == nil {
		return
	}
	if ln.held == h {
		ln.held = nil
	}
	if ln.first == nil {
		req.other = ln.entry
		ln.entry = ""
		delete(w.lines, ln.lineKey)
		return
	}
	if ln.asking || w.locker.quorum != nil {
		return // the answer tells; or there is no queue
	}
	if ln.entry == "" {
		ln.entry, req.fresh = newEntry(1, w.locker.id), true
	}
	ln.asking, ln.sent, ln.server = true, time.Now(), 0
	req.line, req.other, req.mark, req.what = ln, ln.entry, w.locker.mark(), ln.first.opts.what
}

// departed records what became of the entry that went along with a release.
func (w *waiters) departed(h *hold, req releaseRequest, reply releaseReply, err error) {
	w.mu.Lock()
	ln := req.line
	if ln == nil {
		if ln = w.lines[lineKey{h.key(), h.limit}]; ln != nil && ln.first != nil {
			ln.askAt = time.Time{}
			if w.locker.quorum != nil {
				ln.askAt = time.Now().Add(splitDelay(1)) // others have had no turn yet
			}
			ln.first.poke()
		}
		w.mu.Unlock()
		return
	}
	ln.asking = false
	sent, accepted, ours := ln.sent, w.settle(h.key(), req.other, reply.fence), ln.entry == req.other
	switch {
	case accepted:
	case !ours || err != nil || ln.first == nil:
		ln.entry, ln.askAt = "", time.Time{}
		w.drop(h.key(), req.other)
		if ln.first == nil && w.lines[ln.lineKey] == ln {
			delete(w.lines, ln.lineKey)
		}
	case reply.fence == 0:
		ln.noted(sent, reply.server, reply.place, reply.queued, 0)
		ln.poll(w.locker, req.mark)
	}
	if ln.first != nil {
		ln.first.poke() // to see when it has to ask
	}
	w.mu.Unlock()
	if !accepted && ours && err == nil && reply.fence != 0 {
		w.told(named(req.other), h.key(), reply.fence, reply.queued > 0, sent, 0)
	}
}

// lost tells the line that a hold has ended without a release.
func (w *waiters) lost(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := w.lines[lineKey{h.key(), h.limit}]
	if ln == nil {
		return
	}
	if ln.held == h {
		ln.held = nil
	}
	if ln.first == nil {
		w.close(ln)
		return
	}
	ln.askAt = time.Time{}
	ln.first.poke()
}

// wantedBy records that calls of other processes wait for key.
func (w *waiters) wantedBy(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ln := w.lines[lineKey{key, 1}]; ln != nil {
		ln.wanted = true
	}
}

// askAgain has every line ask: messages may have been missed.
func (w *waiters) askAgain() {
	w.mu.Lock()
	keys := make([]string, 0, len(w.notify))
	for _, ln := range w.lines {
		ln.asks, ln.askAt = 0, time.Time{}
		if ln.first != nil {
			ln.first.poke()
		}
	}
	for key := range w.notify {
		keys = append(keys, key)
	}
	for i := range w.announced {
		w.announced[i]++
	}
	w.mu.Unlock()
	for _, key := range keys {
		w.freed(key)
	}
}

// hint is what the line knows of the key, for a call that does not ask.
func (c *waiter) hint() (remaining time.Duration, waiting int) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	until := c.line.until
	if h := c.line.held; h != nil {
		until = w.locker.renewals.deadline(h)
	}
	return max(0, time.Until(until)), max(c.line.queued, 1) - 1 + c.line.n
}

// askNow lets the line ask again without delay.
func (c *waiter) askNow() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.line.askAt = time.Time{}
}

// wait returns nil after d, or when the call is poked; ErrClosed when the Locker
// closes; the ctx's error when ctx ends.
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

func (c *waiter) poke() { send(c.wake, struct{}{}) }

func (ln *line) push(c *waiter) {
	c.prev, c.next = ln.last, nil
	if ln.last == nil {
		ln.first = c
	} else {
		ln.last.next = c
	}
	ln.last = c
	ln.n++
	c.inLine = true
}

func (ln *line) unshift(c *waiter) {
	c.prev, c.next = nil, ln.first
	if ln.first == nil {
		ln.last = c
	} else {
		ln.first.prev = c
	}
	ln.first = c
	ln.n++
	c.inLine = true
}

func (ln *line) remove(c *waiter) {
	if c.prev == nil {
		ln.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		ln.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next, c.inLine = nil, nil, false
	ln.n--
}

// noted records what Redis said of the line's entry.
func (ln *line) noted(sent time.Time, server int64, place, queued int, remaining time.Duration) {
	ln.sent, ln.server = sent, server
	ln.until = sent.Add(remaining)
	ln.place, ln.queued = place, queued
	ln.wanted = queued > min(place, 1)
	ln.asks++
	if place == 0 {
		ln.entry = "" // Redis does not know it
	}
}

// poll sets when to ask again, after a question with mark. A release wakes the line;
// asking is for words that were lost and for holders that died.
func (ln *line) poll(l *Locker, mark any) {
	now := time.Now()
	if l.quorum != nil {
		ln.askAt = now.Add(splitDelay(ln.asks))
		return
	}
	if mark == markPolls || ln.entry == "" {
		if ln.entry != "" && l.wakeups.Up() {
			ln.askAt = now // to be told from now on
		} else {
			ln.askAt = now.Add(backoff.Spread(backoff.Exponential(ln.asks, pollMin, pollMax)))
		}
		return
	}
	// The first few look after one another's deaths; those behind them have time.
	floors := min(max(1, ln.place-2), maxPollFloors)
	ln.askAt = now.Add(backoff.Spread(time.Duration(floors) * l.pollFloor))
	if floors == 1 && ln.until.After(now) && ln.until.Before(ln.askAt) {
		ln.askAt = ln.until.Add(time.Millisecond)
	}
}

// splitDelay is how long a line waits before its next question to a quorum, after n
// of them. It is spread widely, so that callers of whom none had a majority do not
// meet again.
func splitDelay(n int) time.Duration {
	return pollMin + backoff.Full(n, 2*pollMin, pollMax-pollMin)
}

// notifyRelease has ch told when key is freed, until the holder's lease is over.
// If anything was announced since announced was counted, ch is told at once.
func (w *waiters) notifyRelease(key string, ch chan<- string, announced uint64, remaining time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweep()
	w.forget(key, func(n notification) bool { return n.ch == ch })
	if *w.count(key) != announced {
		send(ch, key)
		return
	}
	w.notify[key] = append(w.notify[key], notification{ch: ch, until: time.Now().Add(remaining + time.Second)})
}

// announcements returns the count of announcements so far for key.
func (w *waiters) announcements(key string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *w.count(key)
}

// freed announces that key is free, or may be.
func (w *waiters) freed(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*w.count(key)++
	for _, n := range w.notify[key] {
		send(n.ch, key)
	}
	delete(w.notify, key)
}

// count is the counter of announcements that key shares. Called with mu held.
func (w *waiters) count(key string) *uint64 {
	return &w.announced[maphash.String(w.seed, key)%uint64(len(w.announced))]
}

func send[T any](ch chan<- T, v T) {
	select {
	case ch <- v:
	default:
	}
}

// sweep forgets notifications whose announcement never came, at most once a
// second. Called with mu held.
func (w *waiters) sweep() {
	now := time.Now()
	if now.Sub(w.swept) < time.Second {
		return
	}
	w.swept = now
	for key := range w.notify {
		w.forget(key, func(n notification) bool { return now.After(n.until) })
	}
}

// forget drops the notifications of key that match. Called with mu held.
func (w *waiters) forget(key string, match func(notification) bool) {
	kept := w.notify[key][:0]
	for _, n := range w.notify[key] {
		if !match(n) {
			kept = append(kept, n)
		}
	}
	if len(kept) == 0 {
		delete(w.notify, key)
		return
	}
	w.notify[key] = kept
}
