package delayqueue

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/dedicated"
	"github.com/perkey-go/perkey/internal/listener"
)

// Worker runs the messages of a [Queue], each under the lock of its key. It is safe for concurrent
// use. Any number of Workers, in any number of processes, may serve one Queue.
//
// The zero Worker is not useful: use [NewWorker].
type Worker struct {
	workerSettings
	queue  *Queue
	locker *core.Locker

	mu       sync.Mutex
	started  bool
	stopped  bool
	stopping chan struct{} // closed: claim no more
	done     chan struct{} // closed: every goroutine has ended

	// ctx is the parent of every handler's ctx; Stop cancels it when its own ctx ends.
	ctx      context.Context
	cancel   context.CancelCauseFunc
	slots    *slots
	handlers sync.WaitGroup
	fetching sync.Map // the numbers of goroutines that start those of handlers
	claims   claims
	judge    judge
	paused   atomic.Bool
	claimed  atomic.Int64 // when Redis answered a claim last, in ns of Unix time; 0: never
	waker    waker
	wakeups  *listener.Listener
	freed    func(key string) // of queue

	fetchersMu sync.Mutex
	fetchers   atomic.Pointer[[]*fetcher] // of every partition that the Worker has served
}

// announcements is how many released keys may be buffered. Further ones
// are dropped, and their messages wait for their time.
const announcements = 4096

// NewWorker makes a Worker that runs the messages of q with h, under locks of locker, which stays
// the caller's to close, after the Worker was stopped. The locker must use the same Redis and
// prefix as the guard of the requests, and the queue has that prefix too, so that fresh requests and parked ones exclude each other.
// If the handler itself calls a guard, as httplock.Replay does, both lockers must have the same
// client (otherwise [core.WarnOtherLocker] is reported). The queue may be on another Redis.
// NewWorker does not talk to Redis. Its error wraps [core.ErrInvalidOption].
func NewWorker(q *Queue, locker *core.Locker, h Handler, opts ...WorkerOption) (*Worker, error) {
	switch {
	case q == nil:
		return nil, invalidOption("NewWorker: the queue is nil")
	case q.operator:
		return nil, invalidOption("NewWorker: the queue was opened for its operator (Open); use New")
	case locker == nil:
		return nil, invalidOption("NewWorker: the locker is nil")
	case q.prefix != locker.Prefix():
		return nil, invalidOption("NewWorker: the Locker's prefix is %q, and the queue's %q", locker.Prefix(), q.prefix)
	case h == nil:
		return nil, invalidOption("NewWorker: the handler is nil")
	}
	w := &Worker{
		workerSettings: workerSettings{
			handler:     h,
			concurrency: 8,
			lease:       30 * time.Second,
			retry:       bounds{time.Second, time.Minute},
			conflict:    bounds{250 * time.Millisecond, 5 * time.Second},
			log:         slog.Default(),
			observer:    q.observer,
		},
		queue:    q,
		locker:   locker,
		stopping: make(chan struct{}),
		done:     make(chan struct{}),
	}
	if q.reservationWindow > 0 { // each try of a held key reserves it anew: before that runs out
		w.conflict.most = min(w.conflict.most, q.reservationWindow/2)
		w.conflict.initial = min(w.conflict.initial, w.conflict.most)
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalidOption("NewWorker: an option is nil")
		}
		if err := opt(w); err != nil {
			return nil, err
		}
	}
	for _, m := range slices.Backward(w.middleware) {
		if w.handler = m(w.handler); w.handler == nil {
			return nil, invalidOption("WithMiddleware: one returned a nil Handler")
		}
	}
	if q.retention <= 2*w.lease {
		return nil, invalidOption("WithClaimLease(%s): want less than half of the queue's WithRetention, which is %s, "+
			"so that how a message ended is known while its worker can ask", w.lease, q.retention)
	}
	w.complete()
	return w, nil
}

// complete makes what depends on the options.
func (w *Worker) complete() {
	q := w.queue
	w.log = w.log.With(slog.String("queue", q.name))
	w.slots = newSlots(w.concurrency, q.maxAttempts == 1, w.fetchMore)
	w.waker = waker{released: make(chan string, announcements), toUnreserve: make(chan string, announcements), queue: q, locker: w.locker}
	w.freed = w.waker.reconsider
	w.judge.retry, w.judge.conflict, w.judge.maxAttempts = w.retry, w.conflict, q.maxAttempts
	w.claims.held, w.claims.lease, w.claims.rdb, w.claims.given, w.claims.log = map[*claim]struct{}{}, w.lease, q.rdb, w.heartbeats, w.log
	w.lockOptions = append(w.lockOptions, core.NotifyRelease(w.waker.released))
	if q.reservationWindow > 0 {
		w.lockOptions = append(w.lockOptions, reservations.Reserved(q.reservationWindow))
	}
	w.lockOptions = slices.Clip(w.lockOptions)
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	w.fetchers.Store(&[]*fetcher{})
	w.wakeups = listener.New(q.rdb, wakeChannel(&q.settings), func() {
		w.claims.beats.Follow()
		w.wakeFetchers("", 0)
	}, func(error) { w.claims.beats.Follow() }, w.onWakeMessage) // the connections that there are may be to an old primary
}

// Start starts the Worker in the background. It does not wait for Redis: while that is down the Worker tries again,
// with backoff. A Worker starts once: after that Start returns [ErrStarted], and after Stop [ErrStopped].
func (w *Worker) Start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.queue == nil:
		return fmt.Errorf("delayqueue: start: %w: it is a zero Worker: use NewWorker", ErrInvalidArgument)
	case w.stopped:
		return fmt.Errorf("delayqueue: start: %w", ErrStopped)
	case w.started:
		return fmt.Errorf("delayqueue: start: %w", ErrStarted)
	}
	w.started = true
	w.queue.freed.Store(&w.freed)
	go w.run()
	return nil
}

// Stop makes the Worker claim no more messages, and waits for those that run. If ctx ends first,
// the ctx of their handlers is cancelled with [ErrStopped] as its cause, and Stop goes on waiting
// for them to return. Messages that they left unfinished go back to the queue without having spent
// an attempt, and Stop returns ctx's error. No goroutine is left when it returns.
//
// A handler of this Worker may call it, on its own goroutine or with its ctx. Stop cannot wait for that
// one, so it returns when ctx ends: give it one that does, and call Stop again elsewhere to wait.
//
// Stop may be called before Start, more than once, and from several goroutines: each call waits,
// and the first ctx to end counts for all.
func (w *Worker) Stop(ctx context.Context) error {
	if w.queue == nil { // a zero Worker, which cannot start
		return nil
	}
	w.mu.Lock()
	if !w.stopped {
		w.stopped = true
		close(w.stopping)
		w.queue.freed.CompareAndSwap(&w.freed, nil)
		if !w.started {
			close(w.done)
		}
	}
	w.mu.Unlock()

	var err error
	select {
	case <-w.done:
	case <-ctx.Done():
		select {
		case <-w.done: // both: nothing was left to wait for
		default:
			err = store.CallerGone(ctx, "stop: handlers were still running")
		}
	}
	w.cancel(fmt.Errorf("delayqueue: %w", ErrStopped))
	if err == nil || !w.isHandler(ctx) {
		<-w.done
	}
	return err
}

// isHandler reports whether one of the Worker's handlers calls. All run on goroutines that a fetcher started.
func (w *Worker) isHandler(ctx context.Context) bool {
	r, _ := ctx.Value(resultKey{}).(*resultHolder)
	_, parent := goroutine()
	_, started := w.fetching.Load(parent)
	return started || r != nil && r.owner == w
}

// goroutine returns the numbers of this goroutine and of the one that started it, as a stack has them.
func goroutine() (own, parent string) {
	stack := make([]byte, 64<<10) // of the inner and outer 50 functions
	text := string(stack[:runtime.Stack(stack, false)])
	own, _, _ = strings.Cut(strings.TrimPrefix(text, "goroutine "), " ")
	const by = " in goroutine "
	parent, _, _ = strings.Cut(text[strings.LastIndex(text, by)+len(by):], "\n")
	return own, parent
}

// run has the Worker's goroutines: serve → drain what was claimed → end the helpers. It returns after all of them.
func (w *Worker) run() {
	defer close(w.done)
	drained := make(chan struct{})
	w.claims.beats = dedicated.New(w.queue.rdb, w.heartbeats, heartbeatConns)
	defer w.claims.beats.Close()
	var helpers, claiming, wakers sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background()) // of wakes
	defer cancel()
	helpers.Go(func() { w.wakeReleased(ctx, cancel, &wakers, drained) })
	w.wakeups.Start()
	w.serve(func(c *fetcher) {
		if !c.served {
			c.served = true
			helpers.Go(func() { w.claims.heartbeat(c.partition, drained) })
		}
		claiming.Go(func() {
			if c.run(); w.isStopping() { // it may be started once more
				c.drains.Do(func() { wakers.Go(func() { c.wakeFreed(ctx) }) })
			}
		})
	})
	claiming.Wait()
	w.handlers.Wait()
	close(drained)
	helpers.Wait()
	w.wakeups.Close()
}

// serve reads the manifest from time to time, and serves its partitions, and no others, until Stop.
func (w *Worker) serve(start func(*fetcher)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-timer.C:
		case <-w.stopping:
			return
		}
		m, err := w.queue.manifests.reread(w.ctx, "work")
		if err == nil {
			err = w.queue.manifests.lacksKeys("work", m)
		}
		wait := manifestFresh
		switch failures++; {
		case isRefusal(err):
			w.log.Error("delayqueue: the queue is not for this process", slog.Any("error", err))
			w.serveOnly(nil, start)
		case err == nil:
			w.serveOnly(m, start)
			failures = 0
		default:
			wait = backoff.Spread(backoff.Exponential(failures, outageBefore, outageMost))
			w.log.Warn("delayqueue: the manifest could not be read", slog.Any("error", err), slog.Int("failures", failures))
		}
		timer.Reset(wait)
	}
}

// serveOnly starts the fetchers of a manifest's partitions, and retires the others; all of them without a manifest.
func (w *Worker) serveOnly(m *manifest, start func(*fetcher)) {
	for _, c := range *w.fetchers.Load() {
		if c.retired.Store(m == nil || !slices.Contains(m.partitions, c.partition)); c.retired.Load() {
			c.wakeSoon()
		}
	}
	if m == nil {
		return
	}
	for _, p := range m.partitions {
		if c := w.fetcherOf(p); c.running.CompareAndSwap(false, true) {
			start(c)
		}
	}
}

// onWakeMessage takes a message of the scripts: the base of a partition that has something due, perhaps after some ms, or a key
// that has no messages any more.
func (w *Worker) onWakeMessage(message string) {
	base, key, emptied := strings.Cut(message, " ")
	if emptied {
		w.waker.reconsider(key)
		return
	}
	base, later, _ := strings.Cut(base, "\n")
	ms, _ := strconv.ParseInt(later, 10, 64)
	w.wakeFetchers(base, time.Duration(ms)*time.Millisecond)
}

// fetchMore tells the fetchers that more may be claimed than before.
func (w *Worker) fetchMore() {
	for _, c := range *w.fetchers.Load() {
		select {
		case c.moreSlots <- struct{}{}:
		default:
		}
	}
}

// wakeFetchers wakes the fetcher of the partition with this base, after a while; all of them if base is empty.
func (w *Worker) wakeFetchers(base string, after time.Duration) {
	for _, c := range *w.fetchers.Load() {
		switch {
		case base != "" && base != c.partition.Base:
		case after > 0:
			c.wakeIn(after)
		default:
			c.wakeSoon()
		}
	}
}

// Pause makes the Worker claim no more messages until [Worker.Resume]. Messages that it has claimed
// go on; what a claim brings that is under way goes back to the queue, not run, and is due for other
// Workers at once. [Queue.Pause] is for all Workers.
func (w *Worker) Pause() { w.paused.Store(true) }

// Resume ends a [Worker.Pause].
func (w *Worker) Resume() {
	w.paused.Store(false)
	w.wakeFetchers("", 0)
}

func (w *Worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}
