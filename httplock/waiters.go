package httplock

import "sync"

// waiters counts the requests of each principal that have not got their key yet.
type waiters struct {
	most int

	mu sync.Mutex
	by map[string]int // by principal; none is 0
}

// WithMaxWaitersPerPrincipal bounds how many requests of one principal (see [WithPrincipal]) may wait for
// a guard at a time in this process: their body is being read, or they wait for the key. One more is
// answered with 429, before its body is read. Anonymous requests are counted together. Each Middleware
// counts for itself: in a configuration file the routes of a named guard are counted together, and a
// reload begins to count anew.
//
// A request whose key is free, or that needs none ([NoKey]), is counted too while its body is read
// and Redis is asked: leave room for what a client may send at once. n is at least 1. Default: no
// bound.
func WithMaxWaitersPerPrincipal(n int) Option {
	return func(m *Middleware) error {
		if n < 1 {
			return invalid("WithMaxWaitersPerPrincipal(%d): want at least 1", n)
		}
		m.waiters = &waiters{most: n, by: map[string]int{}}
		return nil
	}
}

// enter counts a request until leave is called.
func (w *waiters) enter(principal string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[principal] >= w.most {
		return errPrincipalWaits
	}
	w.by[principal]++
	return nil
}

func (w *waiters) leave(principal string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[principal]--; w.by[principal] == 0 {
		delete(w.by, principal)
	}
}
