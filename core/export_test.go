package core

import "time"

// NeverPoll makes waiting calls rely on being woken.
func (l *Locker) NeverPoll() { l.pollFloor = time.Hour }
