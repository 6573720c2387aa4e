package config

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/strictyaml"
)

// askTimeout bounds how long a reload looks for what is parked.
const askTimeout = 30 * time.Second

// longestName is how much of a route is stored with a parked request, in bytes.
const longestName = 256

// change is what a new file does to a route that its parked requests would be lost by.
type change struct {
	path       string
	principals bool // only those matter that were parked on somebody's behalf
	problem    func(queue string) string
}

// changesOf finds the changes of a route; removed: the new file does not have it.
func changesOf(was, is route, removed bool) (changes []change) {
	const untilRun = "back until they have run, or were cancelled or purged"
	if removed {
		return []change{{member("routes", was.text), false, func(queue string) string {
			return fmt.Sprintf("the route was removed, and requests of it are parked in the queue %q, which would find no guard; with another policy for the route, put it %s", queue, untilRun)
		}}}
	}
	path := member("routes", is.text)
	if was.principal != "" && is.principal != was.principal { // one's id may be another's to the other
		changes = append(changes, change{path, true, func(queue string) string {
			return fmt.Sprintf("the route's principal was %q, and requests are parked on behalf of one in the queue %q; put it %s", strictyaml.Clip(was.principal), queue, untilRun)
		}})
	}
	for _, name := range is.reads {
		if slices.Contains(was.reads, name) || slices.Contains(httplock.StoredHeaders(), name) {
			continue
		}
		changes = append(changes, change{path, false, func(queue string) string {
			return fmt.Sprintf("the key reads the header %s now, which requests that are parked in the queue %q may not have; put the old key %s", name, queue, untilRun)
		}})
	}
	return changes
}

// checkParked reports what parked requests would be lost by. The error is why Redis could not be asked.
func (rt *Runtime) checkParked(ctx context.Context, r *report, before, made *state) error {
	changes := map[routeID][]change{}
	for id, was := range before.routes {
		is, kept := made.routes[id]
		if found := changesOf(was, is, !kept); len(found) > 0 {
			changes[id] = found
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("%w: it took longer than %s", core.ErrUnavailable, askTimeout))
	defer cancel()
	defer context.AfterFunc(rt.closing, cancel)()
	for _, name := range slices.Sorted(maps.Keys(before.queues)) {
		removed := made.queues[name] == nil
		if !removed && len(changes) == 0 {
			continue
		}
		queue := before.queues[name]
		holds, err := queue.Stats(ctx)
		some := holds.Queued+holds.Running+holds.Dead > 0
		if some && removed {
			r.At(member("queues", name), "the queue was removed, and holds messages or dead letters; put it back until it is empty")
		}
		if err == nil && some && len(changes) > 0 {
			err = eachMessage(ctx, queue, func(m delayqueue.Entry) bool {
				method, pattern, _ := strings.Cut(m.Name, " ")
				id, known := before.find(method, pattern)
				ids := []routeID{id}
				if !known && len(m.Name) >= longestName {
					ids = slices.Collect(maps.Keys(changes)) // it may be of any
				}
				for _, id := range ids {
					changes[id] = slices.DeleteFunc(changes[id], func(c change) bool {
						lost := !c.principals || m.Principal != ""
						if lost {
							r.At(c.path, "%s", c.problem(name))
						}
						return lost
					})
					if len(changes[id]) == 0 {
						delete(changes, id)
					}
				}
				return len(changes) > 0
			})
		}
		switch {
		case err == nil:
		case rt.closing.Err() != nil:
			return fmt.Errorf("config: reload: %w", core.ErrClosed)
		default:
			return fmt.Errorf("config: reload: the file removes what parked requests may need, and the queue %q cannot be read: %w", name, err)
		}
	}
	return nil
}

// eachMessage has see look at what a queue holds, until it returns false.
func eachMessage(ctx context.Context, q *delayqueue.Queue, see func(delayqueue.Entry) (goOn bool)) error {
	const page = 500
	// What runs while the queued ones are listed may be queued again when those that run are.
	for _, state := range []delayqueue.State{delayqueue.StateQueued, delayqueue.StateRunning, delayqueue.StateQueued, delayqueue.StateDead} {
		for cursor, more := "", true; more; more = cursor != "" {
			entries, next, err := q.List(ctx, state, cursor, page)
			if err != nil {
				return err
			}
			for _, m := range entries {
				if !see(m) {
					return nil
				}
			}
			cursor = next
		}
	}
	return nil
}
