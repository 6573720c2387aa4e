package groupcommit

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
)

// slow is how long no batch may have begun before more of them may be under way than the
// width: those that are may be on dead connections.
const slow = 20 * time.Millisecond

// ErrClosed is the error of Add when no goroutine can be had.
var ErrClosed = errors.New("groupcommit: closed")

// Options are what a Group needs to know.
type Options[T any] struct {
	// Run does what a batch asks for, on one goroutine of several. The slice is the group's.
	Run func(batch []T)
	// Fits is how many of the first items of a queue, one at least, go into a batch. Nil: all.
	// It must not call the group.
	Fits func(queue []T) int
	// Gone reports whether the caller of an item has left. It must not call the group.
	Gone func(item T) bool
	// Drop takes the items that are not run, because their callers have left. Nil: nobody does.
	Drop func(items []T)

	// Enough reports whether so many items are enough for a batch while another one is under way. Fewer wait for
	// it. Nil: one is. It must not call the group.
	Enough func(items int) bool

	// Width is how many batches are under way at once. With more there would be less to do
	// together; with fewer an item would wait even when nobody is in the way.
	Width int
	// Max is how many batches are under way at once while they are slow.
	Max int

	// Go starts a goroutine, unless it reports false: Add fails with ErrClosed then. Up to Width
	// of them are kept until Close, since a new one would grow its stack anew under each
	// batch, which costs as much as a fifth of a round trip. Nil: they end when there is
	// nothing to do, and the group needs no closing.
	Go func(f func()) bool
}

// Group collects items, and has them run in batches. It is safe for concurrent use.
type Group[T any] struct {
	o Options[T]

	mu      sync.Mutex
	queue   []T
	left    int       // callers that have left since the queue was last cleared up
	out     int       // goroutines that run batches, or look for one
	running int       // batches under way
	latest  int       // number of the batch that began last
	since   time.Time // when it did
	watched bool      // a timer looks whether that is slow
	work    sync.Cond
	idle    int   // goroutines that wait for work
	closed  bool  // there are to be none
	err     error // why Add refuses
}

// New returns a Group.
func New[T any](o Options[T]) *Group[T] {
	g := &Group[T]{o: o}
	g.work.L = &g.mu
	return g
}

// Add has items run soon. It does not wait. The error is that of Refuse, or ErrClosed.
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

// launch has a queue of so many items run: at once, if few batches are under way or they are slow. It reports
// false if no goroutine can be had. Called with mu held.
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

// watch looks at the queue again when the batches under way can be called slow. Called with mu
// held.
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

// start has a goroutine run batches. Called with mu held.
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

// run runs batch after batch.
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
			if number > 0 && g.running > 0 && !g.enough(len(g.queue)) { // they wait for that batch
				g.watch()
				break
			}
			if g.out > g.o.Width && number > 0 && number < g.latest { // they are not slow any more
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

// take moves what goes together from the queue to a batch. Called with mu held.
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

// Enter lets a caller that would wait for its item do the work itself, if no batch is under way
// or about to be: that saves two switches of goroutines. The goroutine that ran the last batch may
// still look for another: it finds none. After true the caller must call
// [Group.Leave]. In a group with a width of one, what is added meanwhile waits for it.
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
	if len(g.queue) == 0 || !g.start() { // else somebody takes its place
		g.out--
	}
}

// Forget notes that the caller of an item has left. The queue does not outgrow the callers
// that there are: it is cleared up when half of it may be for nobody.
func (g *Group[T]) Forget() {
	g.mu.Lock()
	g.left++
	gone := g.clearUp(len(g.queue) / 2)
	g.mu.Unlock()
	g.drop(gone)
}

// clearUp takes the items whose callers have left out of the queue, if more than a number of
// callers have. Called with mu held.
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

// Refuse has Add fail with err, and returns the queue, which is not run. It reports false, and
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

// Refuses reports whether Add fails with what Refuse was given.
func (g *Group[T]) Refuses() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err != nil
}

// Accept ends Refuse. It reports whether there was one.
func (g *Group[T]) Accept() (refused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	refused, g.err = g.err != nil, nil
	return refused
}

// Close has goroutines end as soon as they have nothing to do. It does not wait. What is added
// later is still run, as long as Go starts goroutines.
func (g *Group[T]) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.out += g.idle // they look whether there is something to do
	g.idle = 0
	g.work.Broadcast()
}

// Goroutines is how many there are.
func (g *Group[T]) Goroutines() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.idle + g.out
}
