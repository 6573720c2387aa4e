package ops

import (
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/keytext"
	"github.com/perkey-go/perkey/internal/observing"
)

// Event is something that happened in a process.
type Event struct {
	// Process is the id of the process that reported it; empty in the Snapshot of a Recorder.
	Process string
	// At is when it happened, by the clock of that process.
	At time.Time
	// Source is "locks", "queues", "requests" or "config". Kind is, of locks, a [core.OutcomeKind], "waiting", "released",
	// "detached", "lost", or "forced" for a lease that ForceRelease took; of queues a [delayqueue.EnqueueKind], "started" or a
	// [delayqueue.Outcome]; of both "warning" or "resolved"; of requests an [httplock.OutcomeKind]; and of config "done" or
	// "refused" for a file, with the hash of that in force in ID.
	Source, Kind string
	// Queue is the queue's name, Name the work's, and ID the call's or message's; each, like Key,
	// is empty if it is not known. A name or an ID is cut off after 100 bytes.
	Queue, Key, Name, ID string
	// Fence is the lease's; 0 if there is none.
	Fence int64
	// Took is how long a call waited, a request took, a lease was held, a message that is started was due, or a claim or a call to store
	// a job took.
	Took time.Duration
	// Detail is an error or what is warned of, 200 bytes at most. Errors of an encrypted queue's handlers are not shown.
	Detail string
	// Count is how many events this one stands for: see Snapshot.Events.
	Count int64
}

const (
	maxEvents = 64
	maxDetail = 200
	// Of events of one source, kind, queue and name that come within this time one is kept.
	mergeWithin = time.Second
)

// notable are the last events that somebody may want to know of.
type notable struct {
	mu     sync.Mutex
	events []Event // the oldest first
}

// add keeps an event with an error, or counts it with one that is like it.
func (n *notable) add(e Event, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := len(n.events) - 1; i >= 0 && e.At.Sub(n.events[i].At) < mergeWithin; i-- {
		if like := &n.events[i]; like.Source == e.Source && like.Kind == e.Kind && like.Queue == e.Queue && like.Name == shown(e.Name) {
			like.Count += max(e.Count, 1)
			return
		}
	}
	if len(n.events) == maxEvents {
		n.events = append(n.events[:0], n.events[1:]...)
	}
	n.events = append(n.events, e.own(err))
}

// latest returns the events, the latest first.
func (n *notable) latest() []Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]Event, 0, len(n.events))
	for i := range n.events {
		all = append(all, n.events[len(n.events)-1-i])
	}
	return all
}

// own is the event in memory of its own, within its bounds, with an error in its Detail.
func (e Event) own(err error) Event {
	if e.Detail != "" && err != nil {
		e.Detail += ": "
	}
	e.Detail += safeError(err)
	e.Key, e.Name, e.ID = strings.Clone(e.Key[:min(len(e.Key), core.MaxKeyLen)]), strings.Clone(shown(e.Name)), strings.Clone(shown(e.ID))
	e.Queue, e.Detail = strings.Clone(shown(e.Queue)), strings.Clone(keytext.Cut(e.Detail, maxDetail))
	e.Count = max(e.Count, 1)
	return e
}

// shown is a name as it is shown.
func shown(name string) string { return keytext.Cut(name, maxLabel) }

// safeError is an error's text. The error may be a user's, whose method panics or ends its goroutine.
func safeError(err error) (text string) {
	if err == nil {
		return ""
	}
	if !observing.Aside(func() { text = err.Error() }).Returned {
		return "an error that cannot be shown"
	}
	return text
}

// The sources of events.
const (
	sourceLocks    = "locks"
	sourceQueues   = "queues"
	sourceRequests = "requests"
	sourceConfig   = "config"
)

func callEvent(e *core.Outcome) Event {
	return Event{
		At: time.Now(), Source: sourceLocks, Kind: string(e.Kind), Key: e.Key, Name: e.Name, ID: e.ID, Fence: e.Fence, Took: e.Waited,
	}
}

func lossEvent(e *core.Lost) Event {
	kind := "lost"
	if e.Kind == core.LossForced {
		kind = "forced"
	}
	return Event{At: time.Now(), Source: sourceLocks, Kind: kind, Key: e.Key, Name: e.Name, Fence: e.Fence, Took: e.Held}
}

func releaseEvent(e *core.Released) Event {
	kind := "released"
	if e.Detached {
		kind = "detached"
	}
	return Event{At: time.Now(), Source: sourceLocks, Kind: kind, Key: e.Key, Name: e.Name, Fence: e.Fence, Took: e.Held}
}

// warningEvent has the kind of the warning for its Name, and in Detail what it is about.
func warningEvent(source, kind, about, what string, resolved bool) Event {
	e := Event{At: time.Now(), Source: source, Kind: "warning", Name: kind, Detail: what}
	if resolved {
		e.Kind = "resolved"
	}
	if source == sourceQueues {
		e.Queue = about
	} else if about != "" {
		e.Detail = about + ": " + what
	}
	return e
}

func enqueueEvent(e *delayqueue.Enqueued) Event {
	return Event{
		At: time.Now(), Source: sourceQueues, Kind: string(e.Kind), Queue: e.Queue, Key: e.Key, Name: e.Name, ID: e.ID, Took: e.Took,
	}
}

func messageEvent(queue, kind string, m *delayqueue.Message, took time.Duration) Event {
	return Event{At: time.Now(), Source: sourceQueues, Kind: kind, Queue: queue, Key: m.Key, Name: m.Name, ID: m.ID, Took: took}
}
