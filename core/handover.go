package core

import (
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

const (
	// For how long, from when it was taken, and how often a key is passed on within
	// the process while calls of others wait. The number is for a fair share of
	// processes that are not equally fast.
	passWanted     = time.Millisecond
	passWantedMost = 256
	// The same while nobody is known to wait: word of a waiter may have been lost.
	passAlone = 50 * time.Millisecond
)

// turn is a call's turn to ask Redis.
type turn struct {
	entry   string
	mark    any
	sent    time.Time
	fresh   bool          // the entry is made for this question
	timeout time.Duration // how long to wait for the answer
}

// standing is what a call in line may do now.
type standing struct {
	err      error // it fails
	informed bool  // its policy may decide
	asks     bool  // it is its turn
	turn     turn
	askIn    time.Duration // when its turn may come; negative: it will be woken for it
}

// look returns what the call may do. If it is its turn to ask Redis, join puts it in Redis's
// queue.
func (c *waiter) look(now time.Time, join bool) (s standing) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := c.line
	s.informed = c.number <= ln.informed
	if !s.informed && c.number <= ln.failed {
		s.err = ln.failure
		return s
	}
	if ln.first != c || ln.held != nil || ln.asking {
		s.askIn = -1
		return s
	}
	askAt := ln.askAt
	if ln.admitting > 0 {
		askAt = later(askAt, ln.admitBy)
	}
	if s.askIn = askAt.Sub(now); s.askIn > 0 {
		return s
	}
	s.asks = true
	s.turn = turn{mark: notQueued, sent: now, timeout: ln.timeout(now, c.opts.replyTimeout())}
	if join {
		s.turn.mark = w.locker.store.mark()
	}
	if ln.entry == "" {
		ln.entry = newEntry(ln.limit, w.locker.id)
		ln.sent, ln.server = now, 0
		s.turn.fresh = true
	}
	s.turn.entry = ln.entry
	ln.asking = true
	return s
}

// settle ends a question about an entry. It reports whether a message has granted it
// meanwhile. If so, and the answer is a grant with another fence, the question came to
// Redis only after that grant was released: nobody has use for the new one. Called
// with mu held.
func (w *waiters) settle(key, entry string, fence, server int64) (accepted bool) {
	told, accepted := w.accepted[entry]
	delete(w.accepted, entry)
	if accepted && (fence != 0 && fence != told || fence == 0 && server*1000 > told) {
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
	ln.answered()
	if w.settle(ln.key, t.entry, 0, reply.server) {
		return
	}
	ln.noted(t.sent, reply.server, reply.place, reply.queued, reply.remaining)
	ln.poll(w.locker, t.mark)
}

// grantedTo records a grant as the answer to the call's own question. It reports
// false when the Locker is closed.
func (c *waiter) grantedTo(record string, t turn, reply acquireReply, deadline time.Time) bool {
	w := c.all
	w.mu.Lock()
	var companions []*admission
	defer func() {
		w.mu.Unlock()
		w.admit(companions)
	}()
	ln := c.line
	ln.asking = false
	if w.settle(ln.key, t.entry, reply.fence, 0) {
		return true
	}
	ln.entry = ""
	if !c.inLine { // another hold was passed to it meanwhile: Redis had lost that
		w.drop(ln.key, t.entry)
		return true
	}
	h := w.locker.newHold(record, t.entry, ln.limit, reply.fence, deadline, c.opts)
	if !w.locker.renewals.add(h) {
		return false
	}
	w.give(ln, c, h, reply.waiting)
	companions = w.companions(ln, t.entry, reply.room)
	return true
}

// dropped records that the question was given up: its entry will be cancelled when
// the answer comes. A failure is why there will be none.
func (c *waiter) dropped(t turn, failure error) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := c.line
	ln.asking = false
	if failure != nil {
		ln.unanswered(failure)
	}
	if isUnsent(failure) {
		delete(w.accepted, t.entry) // no answer comes
	}
	if ln.entry == t.entry && (t.fresh || !isUnsent(failure)) {
		ln.entry = ""
	}
	if ln.first != nil {
		ln.first.poke()
	}
}

// orphaned deals with the answer to a question that was given up.
// Its fence is zero if it was no grant.
func (w *waiters) orphaned(key, entry string, fence, server int64) {
	w.mu.Lock()
	accepted := w.settle(key, entry, fence, server)
	if ln := w.lines[lineKey{key, limitOf(entry)}]; ln != nil {
		if fence != 0 || server != 0 {
			ln.asked = time.Time{} // Redis does answer
		}
		if !accepted && ln.entry == entry {
			ln.entry = "" // a message must not grant what is cancelled
		}
	}
	w.mu.Unlock()
	switch {
	case accepted:
	case fence != 0:
		w.locker.cancel(releaseRequest{record: recordName(w.locker.prefix, key), entry: entry}, w.locker.firstLease)
	default:
		w.drop(key, entry)
	}
}

// give passes a new hold to a call of the line. Called with mu held.
func (w *waiters) give(ln *line, c *waiter, h *hold, waiting bool) {
	w.remove(c)
	c.hand(h)
	ln.replied()
	ln.asks, ln.askAt = 0, time.Time{}
	ln.wanted = waiting
	if ln.limit == exclusive {
		ln.held = h
		ln.inform(ln.joined)
	}
	if ln.first == nil && ln.entry == "" {
		delete(w.lines, ln.lineKey)
	}
}

// told takes a grant that was published, or came with the answer to a release: to
// the entry of that name, not before since; room is for one more such holder. A published
// one says when the claim ends on the server's clock, in ms.
func (w *waiters) told(name, key string, fence int64, waiting, room bool, since time.Time, ends int64) {
	w.mu.Lock()
	var companions []*admission
	defer func() {
		w.mu.Unlock()
		w.admit(companions)
	}()
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
	leader := ln.entry
	ln.entry = ""
	w.give(ln, c, h, waiting)
	companions = w.companions(ln, leader, room)
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
	if ln == nil || ln.first == nil || w.reserved.of(ln.key, now) {
		return false
	}
	budget, most := passAlone, w.locker.fences-1
	if ln.wanted || h.waiting.Load() {
		budget, most = passWanted, passWantedMost
	}
	c := ln.first
	if c.opts.ttl != h.ttl || c.opts.bounded() || int64(h.used) >= most || h.since.elapsed(now) > budget {
		return false
	}
	w.remove(c)
	h.used++
	c.hand(h)
	ln.held = h
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
	if ln.asking || !w.locker.store.queues() {
		return // the answer tells; or there is no queue
	}
	req.sent = time.Now()
	if ln.entry == "" {
		ln.entry, req.fresh = newEntry(1, w.locker.id), true
		ln.sent, ln.server = req.sent, 0
	}
	ln.asking = true
	req.line, req.other, req.mark, req.what = ln, ln.entry, w.locker.store.mark(), ln.first.opts.what
}

// departed records what became of the entry that went along with a release.
func (w *waiters) departed(h *hold, req releaseRequest, reply releaseReply, err error) {
	w.mu.Lock()
	ln := req.line
	if ln == nil {
		if ln = w.lines[lineKey{h.key(), int(h.limit)}]; ln != nil && ln.first != nil {
			ln.askAt = time.Time{}
			if !w.locker.store.queues() {
				ln.askAt = time.Now().Add(splitDelay(1)) // others have had no turn yet
			}
			ln.first.poke()
		}
		w.mu.Unlock()
		return
	}
	ln.asking = false
	sent, accepted, ours := req.sent, w.settle(h.key(), req.other, reply.fence, reply.server), ln.entry == req.other
	switch {
	case accepted:
	case !ours || err != nil || ln.first == nil:
		ln.entry, ln.askAt = "", time.Time{}
		w.drop(h.key(), req.other)
		if ln.first == nil && w.lines[ln.lineKey] == ln {
			delete(w.lines, ln.lineKey)
		}
	case reply.fence == 0:
		ln.answered()
		ln.noted(sent, reply.server, reply.place, reply.queued, 0)
		ln.poll(w.locker, req.mark)
	}
	if ln.first != nil {
		ln.first.poke() // to see when it has to ask
	}
	w.mu.Unlock()
	if !accepted && ours && err == nil && reply.fence != 0 {
		w.told(named(req.other), h.key(), reply.fence, reply.queued > 0, false, sent, 0)
	}
}

// lost tells the line that a hold has ended without a release.
func (w *waiters) lost(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := w.lines[lineKey{h.key(), int(h.limit)}]
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
