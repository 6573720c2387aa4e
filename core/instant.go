package core

import "time"

// instant is a time on the monotonic clock, counted from when the process began; zero
// is none. It is a third of a time.Time, of which a held key would keep many. What has
// to outlast a suspended machine keeps its wall clock too, and is a time.Time.
type instant time.Duration

var began = time.Now()

func instantOf(t time.Time) instant { return instant(t.Sub(began)) }

func (i instant) sub(t time.Time) time.Duration { return time.Duration(i - instantOf(t)) }

// elapsed is how long ago i was at now.
func (i instant) elapsed(now time.Time) time.Duration { return -i.sub(now) }
