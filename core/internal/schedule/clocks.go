package schedule

import "time"

// Instant is a time on the monotonic clock, counted from the start of the process; zero means none.
// It is a third of the size of a time.Time, of which a held key would have many.
type Instant time.Duration

var began = time.Now()

// InstantOf converts t.
func InstantOf(t time.Time) Instant { return Instant(t.Sub(began)) }

// Sub is by how much the instant is later than t.
func (i Instant) Sub(t time.Time) time.Duration { return time.Duration(i - InstantOf(t)) }

// Elapsed is by how much now is later than the instant.
func (i Instant) Elapsed(now time.Time) time.Duration { return -i.Sub(now) }

// Moment is a time on both clocks: while a machine is suspended the monotonic clock stands still, and the wall clock goes on.
type Moment struct {
	Mono Instant
	Wall int64 // in ns since 1970
}

// MomentOf converts t.
func MomentOf(t time.Time) Moment { return Moment{InstantOf(t), t.UnixNano()} }

// Passed reports whether m is over at now by either clock, as trust.Passed does.
func (m Moment) Passed(now Moment) bool { return now.Mono >= m.Mono || now.Wall > m.Wall }

// ahead is by how much the wall clock is ahead of the monotonic one.
func (m Moment) ahead() time.Duration { return time.Duration(m.Wall - int64(m.Mono)) }
