package ops

import (
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
)

const (
	maxWatches     = 16
	maxWatch       = 10 * time.Minute
	eventsASecond  = 200 // of a process
	publishEvery   = 250 * time.Millisecond
	wordKey        = "key"
	wordPrefix     = "prefix"
	watchKeyPrefix = ":ops:watch:"
)

func watchChannel(prefix, watch string) string { return prefix + watchKeyPrefix + watch }

// watched is what is watched now. It does not change.
type watched struct {
	watches []watch
	outbox  *outbox
}

// watch is one of an operator's: in Redis as "ID key|prefix KEY".
type watch struct {
	id, key  string
	isPrefix bool
	until    time.Time
}

func (w *watch) text() string {
	word := wordKey
	if w.isPrefix {
		word = wordPrefix
	}
	return w.id + " " + word + " " + w.key
}

// newWatched reads the answer of beacon.lua; nil: nothing is watched, as far as this version knows.
func newWatched(o *outbox, reply any) *watched {
	list, _ := reply.([]any)
	w := &watched{outbox: o}
	for i := 0; i+1 < len(list) && len(w.watches) < maxWatches; i += 2 {
		text, _ := list[i].(string)
		left, _ := list[i+1].(int64)
		id, rest, _ := strings.Cut(text, " ")
		word, key, _ := strings.Cut(rest, " ")
		if id != "" && len(id) <= maxLabel && (word == wordKey || word == wordPrefix) && len(key) <= core.MaxKeyLen {
			until := time.Now().Add(min(time.Duration(left)*time.Millisecond, maxWatch))
			w.watches = append(w.watches, watch{id, key, word == wordPrefix, until})
		}
	}
	if len(w.watches) == 0 {
		return nil
	}
	return w
}

// add takes an event with an error, about its key or one of several.
func (w *watched) add(e Event, err error, keys ...string) {
	owned := false
	for i := range w.watches {
		to := &w.watches[i]
		key, is := to.match(e.Key, keys)
		if !is || e.At.After(to.until) {
			continue
		}
		w.outbox.put(to.id, e.At, func() wireEvent {
			if !owned {
				e, owned = e.own(err), true
			}
			e.Key = strings.Clone(key)
			return wireOfEvent(e)
		})
	}
}

// match returns the first of an event's keys that is watched.
func (w *watch) match(key string, keys []string) (string, bool) {
	if w.matches(key) {
		return key, true
	}
	for _, key := range keys {
		if w.matches(key) {
			return key, true
		}
	}
	return "", false
}

func (w *watch) matches(key string) bool {
	return key != "" && (key == w.key || w.isPrefix && strings.HasPrefix(key, w.key))
}

// outbox holds the events that are published next: eventsASecond of a process, for all watches together.
type outbox struct {
	mu      sync.Mutex
	second  time.Time
	n       int // since then
	batches map[string]*eventBatch
	first   chan struct{} // holds one: there is something to publish
}

// eventBatch is what is published to one watch at once.
type eventBatch struct {
	Process string      `json:"process"`
	Dropped int64       `json:"dropped,omitempty"` // events that are missing, since the one before
	Events  []wireEvent `json:"events"`
}

func newOutbox() *outbox {
	return &outbox{batches: map[string]*eventBatch{}, first: make(chan struct{}, 1)}
}

// put takes an event for a watch, or counts it as dropped.
func (o *outbox) put(watch string, now time.Time, event func() wireEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.second) >= time.Second {
		o.second, o.n = now, 0
	}
	l := o.of(watch)
	if o.n == eventsASecond || len(l.Events) == eventsASecond { // the latter while Redis is away
		l.Dropped++
		return
	}
	o.n++
	l.Events = append(l.Events, event())
}

func (o *outbox) of(watch string) *eventBatch {
	if len(o.batches) == 0 {
		offer(o.first, struct{}{})
	}
	if o.batches[watch] == nil {
		o.batches[watch] = &eventBatch{}
	}
	return o.batches[watch]
}

// take takes what there is.
func (o *outbox) take() map[string]*eventBatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.batches
	o.batches = map[string]*eventBatch{}
	return all
}

// lost counts what could not be published.
func (o *outbox) lost(batches map[string]*eventBatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for watch, lost := range batches {
		o.of(watch).Dropped += lost.Dropped + int64(len(lost.Events))
	}
}
