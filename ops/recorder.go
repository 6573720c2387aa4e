package ops

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
)

// Bounds on what is counted apart, so that lockprom has 6,000 time series at most: 47 for a name of work, 13 for a route,
// 8 for a type of tasks and 64 for a queue. Fewer names leave the histograms fine enough for the alerts on them.
const (
	maxNames  = 64 // of work, and as many routes and types of tasks
	maxQueues = 16
)

// Recorder counts the events of its observers. It has an observer for each source: [Recorder.Locks], [Recorder.Queues],
// [Recorder.Requests] and [Recorder.Idempotency]; asynqlock.WithRecorder and config.WithRecorder take the Recorder
// itself. One Recorder is enough for a process, and can have any number of Lockers and Queues. It is safe for
// concurrent use, and has nothing to close.
//
// The zero Recorder is not useful: use NewRecorder.
type Recorder struct {
	since time.Time

	locks     table[lockCounters]
	unclaimed atomic.Int64
	renewals  renewalCounters
	queues    table[queueCounters]
	requests  table[requestCounters]
	records   [len(recordKinds)]atomic.Int64
	tasks     table[taskCounters]
	config    configState
	warnings  warnings
	notable   notable
	watched   atomic.Pointer[watched] // nil: nothing is

	conflicts, waits, holds sketch
	contended               contended
}

// NewRecorder makes a Recorder that has counted nothing.
func NewRecorder() *Recorder {
	r := &Recorder{since: time.Now(), contended: contended{seed: maphash.MakeSeed()}}
	r.locks.most, r.requests.most, r.tasks.most, r.queues.most = maxNames, maxNames, maxNames, maxQueues
	return r
}

// contended knows the keys of the latest conflicts, one for each of its places. It needs no mutex.
type contended struct {
	seed   maphash.Seed
	hashes [1024]atomic.Uint64
}

func (c *contended) add(key string) {
	h := maphash.String(c.seed, key)
	c.hashes[h%uint64(len(c.hashes))].Store(h)
}

func (c *contended) has(key string) bool {
	h := maphash.String(c.seed, key)
	return c.hashes[h%uint64(len(c.hashes))].Load() == h
}

// warnings are what is warned of and not resolved.
type warnings struct {
	mu   sync.Mutex
	open map[warning]map[string]struct{}
}

// maxSubjects bounds for how many servers a warning is remembered.
const maxSubjects = 1000

type warning struct{ source, kind string }

// add takes a warning about a server or queue.
func (w *warnings) add(which warning, subject string, resolved bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[warning]map[string]struct{}{}
	}
	subjects := w.open[which]
	if subjects == nil {
		subjects = map[string]struct{}{}
		w.open[which] = subjects
	}
	if resolved {
		delete(subjects, subject)
	} else if len(subjects) < maxSubjects {
		subjects[subject] = struct{}{}
	}
}

// outcomes in the order of lockCounters.
var outcomes = [...]core.OutcomeKind{
	core.OutcomeAcquired, core.OutcomeConflict, core.OutcomeDeferred, core.OutcomeShed, core.OutcomeCancelled,
	core.OutcomeDeadline, core.OutcomeUnavailable, core.OutcomeClosed, core.OutcomeError,
}

// lossKinds in the order of lockCounters.
var lossKinds = [...]core.LossKind{core.LossExpired, core.LossGone, core.LossForced, core.LossReleased, core.LossClosed}

// indexOf is the place of kind in a table of all kinds.
func indexOf[K comparable](kinds []K, kind K) int {
	for i, k := range kinds {
		if k == kind {
			return i
		}
	}
	return len(kinds) - 1
}
