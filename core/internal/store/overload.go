package store

import (
	"sync/atomic"
	"time"
)

// pressure is how long things take at a node, in nanoseconds; zero where nothing is known.
type pressure struct {
	// batch is how long one takes, smoothed, and least the shortest of late: how far the node is.
	batch, least atomic.Int64
	// How long calls wait for their replies, as TCP estimates round trips: V. Jacobson and M. Karels, Congestion Avoidance and Control,
	// 1988; RFC 6298. Each call of a batch is a part of a sample.
	mean, deviation atomic.Int64
}

// smooth moves v by a part of its distance to a sample.
func smooth(v *atomic.Int64, sample, part int64) {
	for {
		old := v.Load()
		if v.CompareAndSwap(old, old+(sample-old)/part) {
			return
		}
	}
}

// took records how long a batch took.
func (l *pressure) took(d time.Duration) {
	smooth(&l.batch, int64(d), 8)
	if least := l.least.Load(); least == 0 || int64(d) < least {
		l.least.Store(int64(d))
	} else {
		smooth(&l.least, int64(d), 8192) // it may be farther by now
	}
}

// waited records how long a call waited that was sent in a batch.
func (l *pressure) waited(c *command, r result) {
	if c.at.IsZero() || isUnreachable(r.err) {
		return
	}
	sample, batch := int64(time.Since(c.at)), int64(c.beside)
	off := sample - l.mean.Load()
	smooth(&l.mean, sample, 8*batch)
	smooth(&l.deviation, max(off, -off), 4*batch)
}

// most is what few calls wait longer than. Where all wait alike the deviation is nearly nothing, and says little of the next batch.
func (l *pressure) most() time.Duration {
	mean := l.mean.Load()
	return time.Duration(mean + max(4*l.deviation.Load(), mean/2))
}

// late reports whether a call that is sent now would have its reply after its caller has left: a node that has more to do than it
// can is not to grant what nobody takes.
func (l *pressure) late(c *command) bool { return !c.until.IsZero() && time.Until(c.until) < l.most() }

// What is sent cannot be taken back. So a batch has batchMost calls, and as few as batchLeast where it takes promptly longer than it
// need.
const (
	batchMost, batchLeast = 64, 4
	promptly              = 20 * time.Millisecond
)

func (l *pressure) fits(queue []*command) int {
	share := float64(l.least.Load()+int64(promptly)) / float64(l.batch.Load()+1)
	return min(len(queue), max(batchLeast, int(batchMost*min(1, share))))
}

// slow is how long no batch begins where those in flight are on dead connections. While Redis has too much to do, and callers wait,
// one begins when the reply to another has come.
func (l *pressure) slow() time.Duration {
	return promptly + 2*time.Duration(max(0, l.batch.Load()-l.least.Load()))
}

// forget is for a node that was away.
func (l *pressure) forget() {
	for _, v := range []*atomic.Int64{&l.batch, &l.least, &l.mean, &l.deviation} {
		v.Store(0)
	}
}
