package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// cohortBudget is how long a process may hand the token from goroutine to
// goroutine before it passes it on: short enough that four processes take turns
// within two milliseconds.
const cohortBudget = 250 * time.Microsecond

// cohort is token behind a process's own queue. While the token is in the
// process it goes to the next goroutine in line without Redis, until the budget
// is spent. No lock that excludes processes can hand over faster.
type cohort struct {
	*token
	mu    sync.Mutex
	lines map[string]*cohortLine
}

type cohortLine struct {
	busy  bool      // somebody of this process has the token, or fetches it
	since time.Time // the token came
	// In order of arrival. A caller gets true with the token, and false when it
	// is to fetch it.
	callers []chan bool
}

func newCohort(t target) (contestant, error) {
	return &cohort{token: openToken(t, "cohort:"), lines: map[string]*cohortLine{}}, nil
}

func (c *cohort) Acquire(ctx context.Context, key string) (held, error) {
	c.mu.Lock()
	l := c.lines[key]
	if l == nil {
		l = &cohortLine{}
		c.lines[key] = l
	}
	if !l.busy {
		l.busy = true
		c.mu.Unlock()
		return c.fetch(ctx, key, l)
	}
	turn := make(chan bool, 1)
	l.callers = append(l.callers, turn)
	c.mu.Unlock()
	var withToken bool
	select {
	case withToken = <-turn:
	case <-ctx.Done():
		c.mu.Lock()
		at := slices.Index(l.callers, turn)
		if at >= 0 {
			l.callers = slices.Delete(l.callers, at, at+1)
		}
		c.mu.Unlock()
		if at >= 0 {
			return nil, ctx.Err()
		}
		withToken = <-turn
	}
	if withToken {
		return &cohortHeld{c, l, key}, nil
	}
	return c.fetch(ctx, key, l)
}

func (c *cohort) fetch(ctx context.Context, key string, l *cohortLine) (held, error) {
	if err := c.take(ctx, key); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		l.call(false)
		return nil, err
	}
	c.mu.Lock()
	l.since = time.Now()
	c.mu.Unlock()
	return &cohortHeld{c, l, key}, nil
}

// call calls up the next in line. Its caller holds mu.
func (l *cohortLine) call(withToken bool) {
	if l.busy = len(l.callers) > 0; !l.busy {
		return
	}
	l.callers[0] <- withToken
	l.callers = l.callers[1:]
}

type cohortHeld struct {
	*cohort
	line *cohortLine
	key  string
}

func (h *cohortHeld) Release(ctx context.Context) error {
	h.mu.Lock()
	if len(h.line.callers) > 0 && time.Since(h.line.since) < cohortBudget {
		h.line.call(true)
		h.mu.Unlock()
		return nil
	}
	h.mu.Unlock()
	// The token is passed on first: who fetches it stands behind those who wait.
	err := h.pass(ctx, h.key)
	h.mu.Lock()
	h.line.call(false)
	h.mu.Unlock()
	return err
}
