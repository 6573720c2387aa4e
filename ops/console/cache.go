package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	pageTimeout  = 1200 * time.Millisecond // what a page waits for all its reads
	readTimeout  = 3 * time.Second         // of one read
	retryTimeout = 150 * time.Millisecond  // what a page waits for a read that failed before
	maxReads     = 512                     // that are remembered, or under way
)

var (
	errNoAnswer = errors.New("no answer yet")
	errBusy     = errors.New("too much is being read at once")
)

// cache reads each thing once for all who want it: at most once in a while, and one at a time. It has a goroutine only
// while something is read.
type cache struct {
	mu    sync.Mutex
	reads map[string]*read
}

// read is what is known of one thing.
type read struct {
	value   any
	known   bool
	at      time.Time // when value was read
	err     error     // of the last read
	tried   time.Time // when the last read began
	used    time.Time
	loading chan struct{} // nil: no read is under way
}

// panel is a part of a page: what is known, and how old it is.
type panel[T any] struct {
	Data  T
	Known bool      // Data was read at some time
	At    time.Time // when
	Err   error     // why Data is not newer
}

// OK reports whether the panel shows what is true now.
func (p panel[T]) OK() bool { return p.Err == nil }

// get returns what load returned last, if that is not older than every, and otherwise has it called and waits for
// it, but no longer than ctx allows: then it returns what is known, with an error.
func get[T any](ctx context.Context, c *cache, name string, every time.Duration, load func(context.Context) (T, error)) panel[T] {
	c.mu.Lock()
	if c.reads == nil {
		c.reads = map[string]*read{}
	}
	r := c.reads[name]
	if r == nil {
		if c.makeRoom(); len(c.reads) >= maxReads { // all are under way
			c.mu.Unlock()
			return panel[T]{Err: errBusy}
		}
		r = &read{}
		c.reads[name] = r
	}
	now := time.Now()
	r.used = now
	if r.loading == nil && now.Sub(r.tried) >= every {
		done := make(chan struct{})
		r.loading, r.tried = done, now
		background, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		go func() {
			defer cancel()
			value, err := safely(background, load)
			c.mu.Lock()
			defer c.mu.Unlock()
			if r.err = err; err == nil {
				r.value, r.known, r.at = value, true, time.Now()
			}
			r.loading = nil
			close(done)
		}()
	}
	loading, failed := r.loading, r.err != nil
	c.mu.Unlock()

	if loading != nil {
		if failed {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, retryTimeout)
			defer cancel()
		}
		select {
		case <-loading:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := panel[T]{Known: r.known, At: r.at, Err: r.err}
	if r.known {
		p.Data = r.value.(T)
	}
	if r.loading == loading && loading != nil {
		p.Err = cmp.Or(r.err, errNoAnswer)
	}
	return p
}

// safely calls load, on a goroutine that nobody else looks after.
func safely[T any](ctx context.Context, load func(context.Context) (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("console: it panicked: %v", p)
		}
	}()
	return load(ctx)
}

// forget has the things read anew.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reads {
		r.tried = time.Time{}
	}
}

// makeRoom is called with mu held.
func (c *cache) makeRoom() {
	if len(c.reads) < maxReads {
		return
	}
	type named struct {
		name string
		used time.Time
	}
	var all []named
	for name, r := range c.reads {
		if r.loading == nil {
			all = append(all, named{name, r.used})
		}
	}
	slices.SortFunc(all, func(a, b named) int { return a.used.Compare(b.used) })
	for _, old := range all[:(len(all)+1)/2] {
		delete(c.reads, old.name)
	}
}
