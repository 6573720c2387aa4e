package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

const (
	watchTime    = 5 * time.Minute
	shownWatched = 100 // events of a key
	burst        = 500 * time.Millisecond
)

// unseenTime is for how long a watch goes on that no page shows.
var unseenTime = time.Minute

// watches are the keys that this console has had watched, as long as somebody looks.
type watches struct {
	mu sync.Mutex
	of map[string]*watching
}

// watching is one of them. Its fields are under the mutex of watches.
type watching struct {
	watcher     *ops.Watcher
	until, seen time.Time
	ended       bool
	events      []ops.Event   // the latest last
	changed     chan struct{} // closed at the next event
}

// watchView is what has happened to a key since it is watched.
type watchView struct {
	Until   time.Time
	Ended   bool
	Missing int
	Events  []eventView // the latest first
}

// look is what a page shows of a watch, and tells when there is more; nil: there is none.
func (w *watches) look(key string, fleet fleetView) (v *watchView, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.of[key]
	if one == nil {
		return nil, nil
	}
	one.seen = time.Now()
	v = &watchView{Until: one.until, Ended: one.ended, Missing: int(one.watcher.Dropped())}
	for i := range one.events {
		e := one.events[len(one.events)-1-i]
		v.Events = append(v.Events, eventView{e, fleet.Of(e.Process)})
	}
	slices.SortStableFunc(v.Events, func(a, b eventView) int { return b.At.Compare(a.At) }) // processes tell of some at a time
	return v, one.changed
}

// watch has a key watched, and leads to its page.
func (c *console) watch(w http.ResponseWriter, r *http.Request) {
	if _, err := c.authorize(r, Watch); err != nil {
		c.refuse(w, err)
		return
	}
	key, err := c.names.of(r.URL.Query().Get("key"))
	if err != nil {
		c.refuse(w, err)
		return
	}
	if core.ValidateKey(key) != nil {
		c.refuse(w, &httpError{http.StatusBadRequest, "A key is needed."})
		return
	}
	if err := c.watches.begin(r.Context(), c, key); err != nil {
		refusal := &httpError{http.StatusServiceUnavailable, err.Error()}
		if errors.Is(err, ops.ErrTooManyWatches) {
			refusal = &httpError{http.StatusTooManyRequests, "Too many keys are watched already. Each watch ends by itself: try again in a while."}
		}
		c.refuse(w, refusal)
		return
	}
	w.Header().Set("Location", c.names.url(key))
	w.WriteHeader(http.StatusSeeOther)
}

// begin watches a key, unless it is watched.
func (w *watches) begin(ctx context.Context, c *console, key string) error {
	if v, _ := w.look(key, fleetView{}); v != nil && !v.Ended {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the request
	inTime := time.AfterFunc(readTimeout, cancel)
	watcher, err := ops.Watch(ctx, c.Redis, c.Locker.Prefix(), ops.Watched{Key: key, For: watchTime})
	if inTime.Stop(); err != nil {
		cancel()
		return err
	}
	now := time.Now()
	one := &watching{watcher: watcher, until: now.Add(watchTime), seen: now, changed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if was := w.of[key]; was != nil && !was.ended { // somebody else was quicker
		cancel()
		return nil
	}
	if w.of == nil {
		w.of = map[string]*watching{}
	}
	w.of[key] = one
	go func() {
		defer cancel()
		w.follow(key, one)
	}()
	return nil
}

// follow keeps what happens to a key, until nobody has looked for a while.
func (w *watches) follow(key string, one *watching) {
	tick := time.NewTicker(unseenTime / 2)
	defer tick.Stop()
	events := one.watcher.Events()
	for {
		select {
		case e, open := <-events:
			if !open {
				events = nil
			}
			w.note(one, e, open)
		case <-tick.C:
			if w.unseen(key, one) {
				one.watcher.Close()
				return
			}
		}
	}
}

// note adds an event, or that there are no more.
func (w *watches) note(one *watching, e ops.Event, open bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one.ended = !open; open {
		if one.events = append(one.events, e); len(one.events) > shownWatched {
			one.events = one.events[1:]
		}
	}
	close(one.changed)
	one.changed = make(chan struct{})
}

// unseen forgets a watch that nobody has looked at for a while.
func (w *watches) unseen(key string, one *watching) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(one.seen) < unseenTime {
		return false
	}
	if w.of[key] == one {
		delete(w.of, key)
	}
	return true
}
