package delayqueue

import "sync"

// group is group commit (Gawlick & Kinkade, 1985): what is asked for while Redis
// answers others goes to it together. What comes alone goes alone, at once.
type group[T any] struct {
	run   func([]T)   // answers each of them by itself
	size  func(T) int // in bytes
	mu    sync.Mutex
	queue []T
	out   int // runs under way
}

const (
	groupWidth = 1 // runs under way at most
	groupItems = 64
	groupBytes = 1 << 20
)

// add has item run soon. It does not wait.
func (g *group[T]) add(item T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, item)
	if g.out < groupWidth {
		g.out++
		go g.fly()
	}
}

func (g *group[T]) fly() {
	for {
		batch := g.next()
		if batch == nil {
			return
		}
		g.run(batch)
	}
}

// next takes what goes together; nil when nothing is left to do.
func (g *group[T]) next() []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, bytes := 0, 0
	for n < len(g.queue) && n < groupItems && (n == 0 || bytes+g.size(g.queue[n]) <= groupBytes) {
		bytes += g.size(g.queue[n])
		n++
	}
	if n == 0 {
		g.queue = nil
		g.out--
		return nil
	}
	batch := g.queue[:n:n]
	g.queue = g.queue[n:]
	return batch
}
