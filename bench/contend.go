package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// grace is how long workers may take to come back when they are stopped.
const grace = 3 * time.Second

// contender is one worker that wants a key again and again.
type contender struct {
	state  atomic.Int32
	ctx    context.Context // ended only while the worker waits: it never loses a key by it
	cancel context.CancelFunc

	count int
	waits tallyMarks
	last  time.Duration // when it last acquired, after the beginning
	err   error
}

const (
	contenderBusy int32 = iota
	contenderWaiting
	contenderStopped
)

// contend lets every worker acquire and release one key until the time is up.
func (c *child) contend(j job) (answer, error) {
	workers := make([]*contender, c.role.Workers)
	var wg sync.WaitGroup
	for i := range workers {
		w := &contender{}
		w.ctx, w.cancel = context.WithCancel(context.Background())
		workers[i] = w
		wg.Go(func() {
			time.Sleep(j.At - monotonic())
			w.run(c.contestant, c.board, j)
		})
	}
	time.Sleep(j.At + j.For - monotonic())
	elapsed := monotonic() - j.At // a busy process wakes up late
	for _, w := range workers {
		w.stop()
	}
	back := make(chan struct{})
	go func() {
		wg.Wait()
		close(back)
	}()
	select {
	case <-back:
	case <-time.After(grace):
		// Their figures cannot be read: they may still be writing them.
		return answer{}, fmt.Errorf("calls did not return within %v of their ctx's end", grace)
	}
	a := answer{Waits: histogram{}, Elapsed: elapsed}
	var err error
	for _, w := range workers {
		w.cancel()
		a.Counts = append(a.Counts, w.count)
		a.Waits.addMarks(&w.waits)
		a.Last = max(a.Last, w.last)
		if w.err != nil {
			err = w.err
		}
	}
	return a, err
}

func (w *contender) run(c contestant, b *board, j job) {
	for w.state.CompareAndSwap(contenderBusy, contenderWaiting) {
		began := time.Now()
		h, err := c.Acquire(w.ctx, j.Key)
		wait := time.Since(began)
		if !w.state.CompareAndSwap(contenderWaiting, contenderBusy) { // stopped: it does not count
			w.waits.add(wait)
			if err == nil {
				_ = h.Release(context.Background())
			}
			return
		}
		if err != nil {
			w.err = fmt.Errorf("acquire: %w", err)
			return
		}
		b.enter()
		w.count++
		w.waits.add(wait)
		w.last = monotonic() - j.At
		if j.Inside > 0 {
			time.Sleep(j.Inside)
		}
		b.leave()
		if err := h.Release(context.Background()); err != nil {
			w.err = fmt.Errorf("release: %w", err)
			return
		}
	}
}

func (w *contender) stop() {
	for {
		if w.state.CompareAndSwap(contenderWaiting, contenderStopped) {
			w.cancel()
			return
		}
		if w.state.CompareAndSwap(contenderBusy, contenderStopped) {
			return
		}
	}
}
