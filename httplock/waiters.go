package httplock

import (
	"fmt"
	"net/http"
	"sync"
)

// waiters counts the requests of each principal that have not got their key yet.
type waiters struct {
	most      int
	principal func(*http.Request) (string, error)

	mu sync.Mutex
	by map[string]int // by principal; none is 0
}

// WithMaxWaitersPerPrincipal bounds how many requests of one principal may be in front of their keys at a
// time behind one guard and in this process: their body is being read, or they wait. One more is answered
// with 429, before its body is read. Each Middleware counts for itself: in a configuration file the routes of a named
// guard are counted together, and a reload begins to count anew. principal says who sends a request, such as a user's id or an address;
// those for whom it returns the same string, the empty one included, are counted together. Its error refuses the
// request: with 403 if it wraps [ErrForbidden], and else with 500. It must be safe for concurrent use.
//
// A request whose key is free is counted too, for as long as it takes to read its body and to ask Redis: leave room for
// what a client may well send at once. n is at least 1. Default: no bound.
func WithMaxWaitersPerPrincipal(n int, principal func(*http.Request) (string, error)) Option {
	return func(m *Middleware) error {
		if n < 1 || principal == nil {
			return invalid("WithMaxWaitersPerPrincipal(%d): want at least 1, and a function that says who sends a request", n)
		}
		m.waiters = &waiters{most: n, principal: principal, by: map[string]int{}}
		return nil
	}
}

// enter counts a request until leave is called with what it returns.
func (w *waiters) enter(r *http.Request) (principal string, err error) {
	if principal, err = w.principal(r); err != nil {
		return "", fmt.Errorf("httplock: the principal function failed: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[principal] >= w.most {
		return "", errPrincipalWaits
	}
	w.by[principal]++
	return principal, nil
}

func (w *waiters) leave(principal string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[principal]--; w.by[principal] == 0 {
		delete(w.by, principal)
	}
}
