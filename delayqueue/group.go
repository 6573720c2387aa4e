package delayqueue

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// group is group commit (Gawlick & Kinkade, 1985): what is asked for while Redis
// answers others goes to it together. What comes alone goes alone, at once.
type group[T comparable] struct {
	run  func([]T)   // answers each of them by itself
	size func(T) int // in bytes

	mu     sync.Mutex
	queue  []T
	out    int         // runs under way
	latest int         // number of the one that began last
	since  time.Time   // when it did
	timer  *time.Timer // while something waits, perhaps for a slow one
}

const (
	groupWidth = 2 // runs under way, so that Redis does not wait for us
	groupItems = 64
	groupBytes = 1 << 20
	// A run that takes longer may be on a dead connection: others do not wait for it.
	groupPatience = 20 * time.Millisecond
	groupRuns     = 8 // under way at most
)

// add has item run soon. It does not wait.
func (g *group[T]) add(item T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, item)
	g.launch()
}

// drop forgets an item that was added, unless a run has it.
func (g *group[T]) drop(item T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.queue, item); i >= 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
	}
}

// launch begins a run, if few are under way, or the latest is slow. It is called with mu
// held, and something in the queue.
func (g *group[T]) launch() {
	if g.out < groupWidth || g.out < groupRuns && time.Since(g.since) >= groupPatience {
		g.out++
		g.begin()
		go g.fly(g.latest)
		return
	}
	g.watch()
}

func (g *group[T]) begin() {
	g.latest++
	g.since = time.Now()
}

// watch looks at the queue again when the latest run can be called slow.
func (g *group[T]) watch() {
	if g.timer != nil {
		return
	}
	g.timer = time.AfterFunc(groupPatience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.timer = nil
		if len(g.queue) > 0 {
			g.launch()
		}
	})
}

// fly is run after run, of which the first was begun as the given one.
func (g *group[T]) fly(mine int) {
	for {
		runtime.Gosched() // who is about to ask, after an answer that just came, goes along
		batch := g.next(&mine)
		if batch == nil {
			return
		}
		g.run(batch)
	}
}

// next takes what goes together; nil when nothing is left to do, or later runs do it.
func (g *group[T]) next(mine *int) []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) == 0 || g.out > groupWidth && *mine != g.latest {
		g.out--
		if len(g.queue) > 0 {
			g.watch()
		}
		return nil
	}
	n, bytes := 0, 0
	for n < len(g.queue) && n < groupItems && (n == 0 || bytes+g.size(g.queue[n]) <= groupBytes) {
		bytes += g.size(g.queue[n])
		n++
	}
	batch := g.queue[:n:n]
	g.queue = g.queue[n:]
	g.begin()
	*mine = g.latest
	return batch
}
