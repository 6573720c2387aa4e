package groupcommit

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed is the error of Add when no goroutine can be started.
var ErrClosed = errors.New("groupcommit: closed")

// Options configure a Group.
type Options[T any] struct {
	// Run handles a batch, on one of several goroutines. It must not retain the slice.
	Run func(batch []T)
	// Fits returns how many of the first items of a queue go into a batch, at least one. Nil: all.
	// It must not call the group.
	Fits func(queue []T) int
	// First reports whether an item goes before those that are waiting. Nil: none does.
	First func(item T) bool
	// Gone reports whether the caller of an item has left. It must not call the group.
	Gone func(item T) bool
	// Late reports whether an item that is run now would be done too late for its caller, who has not left. It is asked while
	// the group is overloaded: batches are in flight, and what waits does not fit into one. What is late waits until it is not, or
	// until nothing is in flight, or what is may be stuck. Nil: nothing is. It must not call the group.
	Late func(item T) bool
	// Drop is called with items that are not run because their callers have left. It may be nil.
	Drop func(items []T)

	// Enough reports whether so many items are enough for a batch while another one is in flight. If not, they wait for
	// that one. Nil: one item is enough. It must not call the group.
	Enough func(items int) bool

	// Width is how many batches may be in flight at once. With more, batches would be smaller;
	// with fewer, an item would wait although the server is idle.
	Width int
	// Max is how many batches may be in flight at once while those may be on dead connections.
	Max int
	// Slow returns how long no batch has begun when that may be. A server that has too much to do only replies late, and more in
	// flight would make it worse: there it is longer than between two replies. Nil: 20 ms. It must not call the group.
	Slow func() time.Duration

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
	first   []T
	queue   []T       // after these
	behind  []T       // what is late
	left    int       // callers that have left since clearUp last ran
	out     int       // goroutines that run a batch, or are about to take one
	running int       // batches in flight
	latest  int       // number of the latest batch
	since   time.Time // when it began
	watched bool      // a timer will check whether they are stuck
	work    sync.Cond
	idle    int                   // goroutines that wait for work
	closed  bool                  // goroutines are not retained
	refusal atomic.Pointer[error] // why Add refuses
}

// New returns a Group.
func New[T any](o Options[T]) *Group[T] {
	if o.Slow == nil {
		o.Slow = func() time.Duration { return 20 * time.Millisecond }
	}
	g := &Group[T]{o: o}
	g.work.L = &g.mu
	return g
}

// Add has items run soon. It does not wait. It returns the error given to Refuse, or ErrClosed.
func (g *Group[T]) Add(items ...T) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.Refused(); err != nil {
		return err
	}
	if !g.launch(g.waiting() + len(items)) {
		return ErrClosed
	}
	for _, item := range items {
		if g.o.First != nil && g.o.First(item) {
			g.first = append(g.first, item)
		} else {
			g.queue = append(g.queue, item)
		}
	}
	return nil
}

// waiting is how many items are not in flight. Called with mu held.
func (g *Group[T]) waiting() int { return len(g.first) + len(g.queue) + len(g.behind) }

// launch starts a goroutine for a queue of so many items, if few batches are in flight or they are
// stuck. It reports false if none can be started. Called with mu held.
func (g *Group[T]) launch(items int) bool {
	if g.out < g.o.Width && (g.out == 0 || g.enough(items)) || g.out < g.o.Max && g.stuck() {
		if !g.start() {
			return false
		}
		g.out++
		return true
	}
	g.watch()
	return true
}

// stuck reports whether the batches in flight may be on dead connections. Called with mu held.
func (g *Group[T]) stuck() bool { return time.Since(g.since) >= g.o.Slow() }

func (g *Group[T]) enough(items int) bool { return g.o.Enough == nil || g.o.Enough(items) }

// watch checks the queue again when the batches in flight would count as stuck. Called with mu held.
func (g *Group[T]) watch() {
	if g.watched {
		return
	}
	g.watched = true
	time.AfterFunc(g.o.Slow(), func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.watched = false
		if n := g.waiting(); n > 0 {
			g.launch(n)
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
			if g.waiting() == 0 {
				break
			}
			if number > 0 && g.running > 0 && !g.enough(g.waiting()) { // the items wait for that batch
				g.watch()
				break
			}
			if g.out > g.o.Width && number > 0 && number < g.latest { // batches are not stuck any more
				break
			}
			var gone []T
			if batch, gone = g.take(batch[:0]); len(batch)+len(gone) == 0 { // what is late waits for those in flight
				break
			}
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

// take moves the items of the next batch to batch, and returns those that it met whose callers have left. Called with mu held.
func (g *Group[T]) take(batch []T) (taken, gone []T) {
	if g.o.Late == nil { // Fits is to see what is left
		gone = g.clearUp(0)
	}
	for i := len(g.behind) - 1; i >= 0 && (g.o.Gone(g.behind[i]) || !g.o.Late(g.behind[i])); i-- {
		g.queue = append(g.queue, g.behind[i])
		g.behind = slices.Delete(g.behind, i, i+1)
	}
	n := g.fits(g.first)
	g.queue = slices.Insert(g.queue, 0, g.first[:n]...)
	g.first = slices.Delete(g.first, 0, n)
	room := g.fits(g.queue)
	overloaded := g.o.Late != nil && g.running > 0 && room < len(g.queue)
	i := 0
	for ; i < len(g.queue) && len(batch) < room; i++ {
		switch item := g.queue[i]; {
		case g.o.Late != nil && g.o.Gone(item):
			g.left = max(g.left-1, 0)
			gone = append(gone, item)
		case overloaded && i >= n && g.o.Late(item):
			g.behind = append(g.behind, item)
		default:
			batch = append(batch, item)
		}
	}
	g.queue = slices.Delete(g.queue, 0, i)
	if len(batch) == 0 && (g.running == 0 || g.stuck()) { // the last have most time
		gone = append(gone, g.clearUp(-1)...)
		kept := len(g.behind) - g.fits(g.behind)
		batch = append(batch, g.behind[kept:]...)
		g.behind = slices.Delete(g.behind, kept, len(g.behind))
	}
	if g.waiting() > 0 {
		g.watch()
	}
	if len(batch) > 0 {
		g.latest++
		g.since = time.Now()
	}
	return batch, gone
}

func (g *Group[T]) fits(queue []T) int {
	if g.o.Fits == nil || len(queue) == 0 {
		return len(queue)
	}
	return g.o.Fits(queue)
}

// Enter lets a caller that would wait for its item do the work itself, if no batch is in flight or about to be: that saves two switches
// of goroutines. The goroutine that ran the last batch may still check the queue, and finds it empty. After true the caller must call
// [Group.Leave]. In a group with a width of one, items that are added meanwhile wait for it.
func (g *Group[T]) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running > 0 || g.waiting() > 0 || g.out >= g.o.Width || g.Refused() != nil {
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
	if g.waiting() == 0 || !g.start() { // else another goroutine takes its place
		g.out--
	}
}

// Forget records that the caller of an item has left. The queue does not outgrow the callers that
// still wait: it is cleared up when half of its items may have none.
func (g *Group[T]) Forget() {
	g.mu.Lock()
	g.left++
	gone := g.clearUp(g.waiting() / 2)
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
	isGone := func(item T) bool {
		is := g.o.Gone(item)
		if is {
			gone = append(gone, item)
		}
		return is
	}
	for _, items := range []*[]T{&g.first, &g.queue, &g.behind} {
		*items = slices.DeleteFunc(*items, isGone)
	}
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
	if g.Refused() != nil || g.closed {
		return nil, false
	}
	queue = slices.Concat(g.first, g.queue, g.behind)
	g.first, g.queue, g.behind = nil, nil, nil
	g.refusal.Store(&err)
	return queue, true
}

// Refused is the error given to Refuse, while that is in effect.
func (g *Group[T]) Refused() error {
	if err := g.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// Accept ends Refuse. It reports whether that was in effect.
func (g *Group[T]) Accept() (refused bool) { return g.refusal.Swap(nil) != nil }

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
