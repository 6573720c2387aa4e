package core

import "time"

// NeverPoll makes waiting calls rely on being woken.
func (l *Locker) NeverPoll() { l.pollFloor = time.Hour }

// Listening reports whether the Locker's subscription is up, and whoever waited for
// that was told.
func (l *Locker) Listening() bool { return l.wakeups.Up() }

// RecordName is the name in Redis of a key's record.
var RecordName = recordName

// Scripts are the Lua scripts as Redis gets them, by the names of their files.
var Scripts = map[string]string{
	"acquire": acquireScript.source.(string), "renew": renewScript.source.(string), "release": releaseScript.source.(string),
}
