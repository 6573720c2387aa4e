package groupcommit

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
)

// slow: if no batch has begun for this long, those in flight may be on dead connections, so more
// than Width may be in flight.
const slow = 20 * time.Millisecond

// ErrClosed is the error of Add when no goroutine can be started.
var ErrClosed = errors.New("groupcommit: closed")

// Options configure a Group.
type Options[T any] struct {
	// Run handles a batch, on one of several goroutines. It must not retain the slice.
	Run func(batch []T)
	// Fits returns how many of the first items of a queue go into a batch, at least one. Nil: all.
	// It must not call the group.
	Fits func(queue []T) int
	// Gone reports whether the caller of an item has left. It must not call the group.
	Gone func(item T) bool
	// Drop is called with items that are not run because their callers have left. It may be nil.
	Drop func(items []T)

	// Enough reports whether so many items are enough for a batch while another one is in flight. If not, they wait for
	// that one. Nil: one item is enough. It must not call the group.
	Enough func(items int) bool

	// Width is how many batches may be in flight at once. With more, batches would be smaller;
	// with fewer, an item would wait although the server is idle.
	Width int
	// Max is how many batches may be in flight at once while they are slow.
	Max int

	// Go starts a goroutine, or reports false: then Add fails with ErrClosed. Up to Width
	// goroutines are retained until Close, since a new one would grow its stack under each
	// batch, which costs as much as a fifth of a round trip. Nil: they end when there is
	// nothing to do, and the group needs no closing.
	Go func(f func()) bool
}

// Group collects items and runs them in batches. It is safe for concurrent use.
type Group[T any] struct {
	o Options[T]

	mu      sync.Mutex
	queue   []T
	left    int       // callers that have left since clearUp last ran
	out     int       // goroutines that run a batch, or are about to take one
	running int       // batches in flight
	latest  int       // number of the latest batch
	since   time.Time // when it began
	watched bool      // a timer will check whether it is slow
	work    sync.Cond
	idle    int   // goroutines that wait for work
	closed  bool  // goroutines are not retained
	err     error // why Add refuses
}

// New returns a Group.
func New[T any](o Options[T]) *Group[T] {
	g := &Group[T]{o: o}
	g.work.L = &g.mu
	return g
}

// Add has items run soon. It does not wait. It returns the error given to Refuse, or ErrClosed.
func (g *Group[T]) Add(items ...T) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	if !g.launch(len(g.queue) + len(items)) {
		return ErrClosed
	}
	g.queue = append(g.queue, items...)
	return nil
}

// launch starts a goroutine for a queue of so many items, if few batches are in flight or they are
// slow. It reports false if none can be started. Called with mu held.
func (g *Group[T]) launch(items int) bool {
	if g.out < g.o.Width && (g.out == 0 || g.enough(items)) || g.out < g.o.Max && time.Since(g.since) >= slow {
		if !g.start() {
			return false
		}
		g.out++
		return true
	}
	g.watch()
	return true
}

func (g *Group[T]) enough(items int) bool { return g.o.Enough == nil || g.o.Enough(items) }

// watch checks the queue again when the batches in flight would count as slow. Called with mu held.
func (g *Group[T]) watch() {
	if g.watched {
		return
	}
	g.watched = true
	time.AfterFunc(slow, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.watched = false
		if len(g.queue) > 0 {
			g.launch(len(g.queue))
		}
	})
}

// start starts a goroutine that runs batches, or wakes one. Called with mu held.
func (g *Group[T]) start() bool {
	switch {
	case g.idle > 0:
		g.idle--
		g.work.Signal()
		return true
	case g.o.Go != nil:
		return g.o.Go(g.run)
	default:
		go g.run()
		return true
	}
}

// run is a goroutine of the group: run batches until the queue is empty → wait for work.
func (g *Group[T]) run() {
	var batch []T
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		for number := 0; ; {
			g.mu.Unlock()
			runtime.Gosched() // let callers that were just woken join this batch
			g.mu.Lock()
			if len(g.queue) == 0 {
				break
			}
			if number > 0 && g.running > 0 && !g.enough(len(g.queue)) { // the items wait for that batch
				g.watch()
				break
			}
			if g.out > g.o.Width && number > 0 && number < g.latest { // batches are not slow any more
				break
			}
			gone := g.clearUp(0)
			batch = g.take(batch[:0])
			number = g.latest
			g.running++
			g.mu.Unlock()
			g.drop(gone)
			if len(batch) > 0 {
				g.o.Run(batch)
			}
			clear(batch)
			g.mu.Lock()
			g.running--
		}
		g.out--
		if g.o.Go == nil || g.idle >= g.o.Width || g.closed {
			return
		}
		g.idle++
		g.work.Wait()
	}
}

// take moves the items of the next batch from the queue to batch. Called with mu held.
func (g *Group[T]) take(batch []T) []T {
	n := len(g.queue)
	if g.o.Fits != nil && n > 0 {
		n = g.o.Fits(g.queue)
	}
	batch = append(batch, g.queue[:n]...)
	if g.queue = slices.Delete(g.queue, 0, n); len(g.queue) > 0 {
		g.watch()
	}
	g.latest++
	g.since = time.Now()
	return batch
}

// Enter lets a caller that would wait for its item do the work itself, if no batch is in flight or
// about to be: that saves two switches of goroutines. The goroutine that ran the last batch may
// still check the queue, and finds it empty. After true the caller must call [Group.Leave]. In a
// group with a width of one, items that are added meanwhile wait for it.
func (g *Group[T]) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running > 0 || len(g.queue) > 0 || g.out >= g.o.Width || g.err != nil {
		return false
	}
	g.out++
	g.running++
	return true
}

// Leave ends what Enter began.
func (g *Group[T]) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if len(g.queue) == 0 || !g.start() { // else another goroutine takes its place
		g.out--
	}
}

// Forget records that the caller of an item has left. The queue does not outgrow the callers that
// still wait: it is cleared up when half of its items may have none.
func (g *Group[T]) Forget() {
	g.mu.Lock()
	g.left++
	gone := g.clearUp(len(g.queue) / 2)
	g.mu.Unlock()
	g.drop(gone)
}

// clearUp removes the items whose callers have left from the queue, if more than so many callers
// have. Called with mu held.
func (g *Group[T]) clearUp(more int) (gone []T) {
	if g.left <= more {
		return nil
	}
	g.left = 0
	g.queue = slices.DeleteFunc(g.queue, func(item T) bool {
		is := g.o.Gone(item)
		if is {
			gone = append(gone, item)
		}
		return is
	})
	return gone
}

func (g *Group[T]) drop(gone []T) {
	if len(gone) > 0 && g.o.Drop != nil {
		g.o.Drop(gone)
	}
}

// Refuse makes Add fail with err, and returns the queue, which is not run. It reports false, and
// does nothing, if Add fails already, or after Close.
func (g *Group[T]) Refuse(err error) (queue []T, refused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil || g.closed {
		return nil, false
	}
	queue, g.queue, g.err = g.queue, nil, err
	return queue, true
}

// Refuses reports whether Refuse is in effect.
func (g *Group[T]) Refuses() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err != nil
}

// Accept ends Refuse. It reports whether that was in effect.
func (g *Group[T]) Accept() (refused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	refused, g.err = g.err != nil, nil
	return refused
}

// Close lets the goroutines end as soon as they have nothing to do. It does not wait. Items that
// are added later are still run, as long as Go starts goroutines.
func (g *Group[T]) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.out += g.idle // they wake up and check the queue
	g.idle = 0
	g.work.Broadcast()
}

// Goroutines is how many goroutines the group has.
func (g *Group[T]) Goroutines() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.idle + g.out
}
