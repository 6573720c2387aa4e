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

// said takes the time in a reply, in ms. It was not later than that when the request was sent, so what comes of it is
// never behind the clock, unless that is set forward.
func (c *serverClock) said(ms int64, sent time.Time) {
	if ms != 0 {
		c.at.Store(ms - sent.Sub(c.born).Milliseconds() + 1)
	}
}

// bound is an argument of a request: until when a copy of it may run, by the node's clock; see lua/late.lua. That is how long
// go-redis waits for the reply, counted from when it writes this copy: another copy that is used up by then may be forgotten.
type bound struct {
	clock *serverClock
	wait  time.Duration // 0: there is no bound
	text  [20]byte
}

// MarshalBinary is called by go-redis for each write.
func (b *bound) MarshalBinary() ([]byte, error) {
	ms := int64(0)
	if at := b.clock.at.Load(); at != 0 && b.wait != 0 {
		ms = at + (time.Since(b.clock.born) + b.wait).Milliseconds()
	}
	return strconv.AppendInt(b.text[:0], ms, 10), nil
}

func (b *bound) String() string { return "within " + b.wait.String() }

// addBound adds an argument that bounds a command to so long after it is written.
func (d *deployment) addBound(cmd *command, wait time.Duration) {
	cmd.bound.clock, cmd.bound.wait = &d.batcher(cmd.record).clock, wait
	cmd.add(&cmd.bound)
}
