package store

// A bound on how late a copy of a request may run.

import (
	"strconv"
	"sync/atomic"
	"time"
)

// serverClock is what is known of a node's clock.
type serverClock struct {
	born time.Time
	at   atomic.Int64 // what it said at born, or more, in ms; 0: not known
}

// said takes the time in a reply, in ms. It was not later than that when the request was written, so what comes of it is never
// behind the clock, and the least of several replies is nearest, until one shows that the clock was set forward.
func (r result) said(ms int64) {
	if ms == 0 || r.written == 0 {
		return
	}
	c, at := r.clock, ms-r.written.Milliseconds()+1
	if old := c.at.Load(); old == 0 || at < old || old+time.Since(c.born).Milliseconds() < ms {
		c.at.Store(at)
	}
}

// late reports whether a request was refused as one that came late; see lua/late.lua.
func (r result) late() bool {
	n, err := integers(r.val, 4)
	if err != nil || n[0] != 2 {
		return false
	}
	r.said(n[2])
	return true
}

// bound is an argument of a request: until when a copy of it may run, by the node's clock; see lua/late.lua. That is how long
// go-redis waits for the reply, counted from when it writes this copy: another copy that is used up by then may be forgotten.
type bound struct {
	clock   *serverClock
	wait    time.Duration // 0: there is no bound
	written time.Duration // after the clock's born; 0: it was not
	text    [20]byte
}

// MarshalBinary is called by go-redis for each write.
func (b *bound) MarshalBinary() ([]byte, error) {
	b.written = time.Since(b.clock.born)
	ms := int64(0)
	if at := b.clock.at.Load(); at != 0 && b.wait != 0 {
		ms = at + (b.written + b.wait).Milliseconds()
	}
	return strconv.AppendInt(b.text[:0], ms, 10), nil
}

func (b *bound) String() string { return "within " + b.wait.String() }

// addBound adds an argument that bounds a command, but for one that is sent again since it came late.
func (d *deployment) addBound(cmd *command, again bool) {
	cmd.bound.clock, cmd.bound.wait, cmd.bound.written = &d.batcher(cmd.record).clock, d.replyWithin, 0
	if cmd.ran = again; again {
		cmd.bound.wait = 0
	}
	cmd.add(&cmd.bound)
}
