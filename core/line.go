package core

import (
	"time"

	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/trust"
)

const (
	// How often a line asks while nobody could wake it.
	pollMin = 10 * time.Millisecond
	pollMax = 250 * time.Millisecond
	// Those far back in the queue ask less often, up to this many poll floors.
	maxPollFloors = 5
)

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

	// Admissions under way, and until when the line does not ask by itself meanwhile.
	admitting int
	admitBy   time.Time

	answers

	until  time.Time // when the holder's lease ends, as told at the last conflict
	queued int       // length of Redis's queue
	place  int       // of entry in it, from 1
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
	ln.joins(c)
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
	if !l.store.queues() {
		ln.askAt = now.Add(splitDelay(ln.asks))
		return
	}
	if mark == markPolls || ln.entry == "" {
		if ln.entry != "" && l.store.listening() {
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
