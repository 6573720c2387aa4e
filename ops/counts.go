package ops

import (
	"sync/atomic"
	"time"
)

// What packages count in a Recorder that would link too much here: asynqlock links asynq, and config links yaml.

// taskKinds in the order of taskCounters, and reloadKinds in that of configState: those of asynqlock.OutcomeKind, of
// which another is counted as failed, and of config.ReloadKind.
var (
	taskKinds   = [...]string{"done", "lost", "deferred", "too_old", "no_key", "expired", "skipped", "failed"}
	reloadKinds = [...]string{"done", "unchanged", "refused"}
)

type taskCounters [len(taskKinds)]atomic.Int64

type configState struct {
	reloads [len(reloadKinds)]atomic.Int64
	inForce atomic.Pointer[ConfigStats] // nil: there is none
}

// CountTask counts a task of asynq that has ended in an asynqlock.OutcomeKind. With
// asynqlock.WithRecorder the middleware calls it.
func (r *Recorder) CountTask(taskType, outcome string) {
	r.tasks.of(taskType)[indexOf(taskKinds[:], outcome)].Add(1)
}

// CountReload counts the outcome of a configuration file, a config.ReloadKind; empty for the one
// that a process starts with. The version and hash are those of the file that is in force now. With
// config.WithRecorder the runtime calls it.
func (r *Recorder) CountReload(result string, version int, hash string) {
	r.config.inForce.Store(&ConfigStats{Version: version, Hash: hash, Refused: result == "refused"})
	if result == "" {
		return
	}
	r.config.reloads[indexOf(reloadKinds[:], result)].Add(1)
	if result == "done" || result == "refused" {
		r.notable.add(Event{At: time.Now(), Source: sourceConfig, Kind: result, ID: hash}, nil)
	}
}

// snapshot is nil if there is no configuration.
func (c *configState) snapshot() *ConfigStats {
	inForce := c.inForce.Load()
	if inForce == nil {
		return nil
	}
	s := *inForce
	s.Reloads = counts(reloadKinds[:], c.reloads[:])
	return &s
}

func anyCounted(counters []atomic.Int64) bool {
	for i := range counters {
		if counters[i].Load() != 0 {
			return true
		}
	}
	return false
}

func (c *requestCounters) used() bool { return anyCounted(c[:]) }
func (c *taskCounters) used() bool    { return anyCounted(c[:]) }
