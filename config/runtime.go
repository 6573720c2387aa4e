package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/ops"
)

// Runtime holds what Build makes of a File: a Redis client, a Locker, queues, guards and the
// middleware of routes. It is safe for concurrent use. Call Shutdown or Close when done.
//
// The zero Runtime is not useful: use Build.
type Runtime struct {
	options  *options
	rdb      redis.UniversalClient
	locker   *core.Locker
	keyrings map[string]delayqueue.Keyring
	started  *File       // what a reload cannot change is as it is here
	beacon   *ops.Beacon // nil: the file has no section ops

	current atomic.Pointer[state]

	reloads sync.Mutex // one at a time, and router
	router  *router    // nil: not known
	asked   sync.Map   // the names of guards that Guard was called for

	closing context.Context // ends with the first Shutdown
	close   context.CancelFunc
	mu      sync.Mutex // workers, and none after close
	workers []*delayqueue.Worker
}

var _ httplock.Routes = (*Runtime)(nil)

// Build returns a Runtime for a File. It does not talk to Redis: a server that is down is reported
// by the calls that need it. Mistakes of the file, such as a name that no option gave, are an
// *Error; the error for a wrong option wraps core.ErrInvalidOption. After an error nothing is left
// open.
func Build(f *File, opts ...Option) (*Runtime, error) {
	if f == nil {
		return nil, invalid("Build: the file is nil")
	}
	o := &options{
		principals: map[string]sender{}, skips: map[string]httplock.Option{}, values: contextValues{},
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalid("Build: an option is nil")
		}
		if err := opt(o); err != nil {
			return nil, err
		}
	}
	if f.spec.Ops != nil && o.recorder == nil {
		o.recorder = ops.NewRecorder()
	}
	o.record()
	rt := &Runtime{options: o, started: f, rdb: o.client, keyrings: map[string]delayqueue.Keyring{}}
	rt.closing, rt.close = context.WithCancel(context.Background())
	if err := rt.open(f); err != nil {
		rt.close()
		if rt.locker != nil {
			_ = rt.locker.Close()
		}
		if o.client == nil && rt.rdb != nil {
			_ = rt.rdb.Close()
		}
		return nil, err
	}
	if s := f.spec.Redis.TLS; o.client == nil && s != nil && s.InsecureSkipVerify {
		rt.log().Warn("config: redis.tls.insecure_skip_verify: whoever is on the network path to Redis can read and change everything", "file", f.name)
	}
	rt.warnUnguarded(f)
	return rt, nil
}

func (rt *Runtime) open(f *File) error {
	r := f.report()
	for name, q := range f.spec.Queues {
		if q.Encryption != nil {
			rt.keyrings[name] = r.keyring(member(member("queues", name), "encryption"), q.Encryption)
		}
	}
	s := &f.spec.Redis
	if rt.options.client == nil {
		if !s.given() {
			r.At("redis", "no Redis is given; set redis.url or redis.addresses, or use config.WithClient")
		} else if client := r.connect(s, rt.log); client != nil {
			rt.rdb = client
		}
	}
	if err := r.err(); err != nil {
		return err
	}
	var logged []core.Option
	if rt.options.log != nil {
		logged = append(logged, core.WithLogger(rt.options.log))
	}
	locker := []core.Option{core.WithTTL(cmp.Or(f.spec.Defaults.TTL, core.DefaultTTL)), core.WithPrefix(f.prefix())}
	var err error
	if rt.locker, err = core.New(rt.rdb, slices.Concat(logged, rt.options.locker, locker)...); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	made, found := rt.compile(f)
	if made == nil {
		return found.err()
	}
	rt.current.Store(made)
	if rt.options.recorder != nil {
		rt.options.recorder.CountReload("", made.version, f.Hash())
	}
	return rt.startBeacon(f)
}

// Route implements httplock.Routes: it returns the middleware and the key of the route as
// the file has it now. The pattern may be of any framework's form; a host in it does not
// matter, as the file has none. HEAD has GET's route, unless it has its own.
func (rt *Runtime) Route(method, pattern string) (httplock.Route, bool) {
	return rt.current.Load().Route(method, pattern)
}

// Guard returns the guard of this name as the file has it now, or nil, which refuses every call, if
// there is none. A guard does not change when the file is reloaded: call Guard again rather than
// keep it. From then on a file without the guard is refused.
func (rt *Runtime) Guard(name string) *core.Guard {
	g := rt.current.Load().guards[name]
	if g != nil {
		rt.asked.LoadOrStore(name, nil)
	}
	return g
}

// Queue returns the queue of this name as the file has it now. Nil: there is no such queue.
func (rt *Runtime) Queue(name string) *delayqueue.Queue { return rt.current.Load().queues[name] }

// Locker returns the Locker of all guards.
func (rt *Runtime) Locker() *core.Locker { return rt.locker }

// Redis returns the client.
func (rt *Runtime) Redis() redis.UniversalClient { return rt.rdb }

// File returns the file that is in force.
func (rt *Runtime) File() *File { return rt.current.Load().file }

// Worker returns a worker for a queue of the file, with the file's section worker, and
// opts after it. Start it; Shutdown stops it. Parked requests run only if some process
// has a worker. Its error wraps core.ErrInvalidOption, or is core.ErrClosed.
func (rt *Runtime) Worker(queue string, h delayqueue.Handler, opts ...delayqueue.WorkerOption) (*delayqueue.Worker, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closing.Err() != nil {
		return nil, fmt.Errorf("config: worker: %w", core.ErrClosed)
	}
	s := rt.current.Load()
	q, ok := s.file.spec.Queues[queue]
	if !ok {
		return nil, invalid("Worker(%q): there is no such queue in %s", queue, s.file.name)
	}
	var from []delayqueue.WorkerOption
	if rt.options.log != nil {
		from = append(from, delayqueue.WithLogger(rt.options.log))
	}
	from = option(from, q.Worker.Concurrency, delayqueue.WithConcurrency)
	from = option(from, q.Worker.ClaimLease, delayqueue.WithClaimLease)
	from = append(from, delayqueue.WithRetryBackoff(q.Worker.initial(), q.Worker.most()))
	w, err := delayqueue.NewWorker(s.queues[queue], rt.locker, h, append(from, opts...)...)
	if err == nil {
		rt.workers = append(rt.workers, w)
		if rt.beacon != nil {
			rt.beacon.AddWorkers(w)
		}
	}
	return w, err
}

func (w *workerSection) initial() time.Duration {
	if w.RetryInitial == 0 && w.RetryMax > 0 {
		return min(time.Second, w.RetryMax)
	}
	return cmp.Or(w.RetryInitial, time.Second)
}

func (w *workerSection) most() time.Duration {
	if w.RetryMax == 0 {
		return max(time.Minute, w.RetryInitial)
	}
	return w.RetryMax
}

// Shutdown stops the workers, waits for the holders of keys, removes the process's report from
// Redis, and closes the Redis client, unless WithClient gave it. Call it after the HTTP server's
// Shutdown. When ctx ends, so do the contexts of that work, as with the Locker's Shutdown and workers'
// Stop, and it returns ctx's error. It waits for all handlers, so none may call it. It may be called twice.
func (rt *Runtime) Shutdown(ctx context.Context) error {
	rt.mu.Lock()
	rt.close()
	workers := rt.workers
	rt.mu.Unlock()

	stopped := make([]error, len(workers))
	var stopping sync.WaitGroup
	for i, w := range workers {
		stopping.Go(func() { stopped[i] = w.Stop(ctx) })
	}
	stopping.Wait()
	drained := rt.locker.Shutdown(ctx)
	telling := rt.closeBeacon() // it has reported the others until now
	var closed error
	if rt.options.client == nil {
		// Commands that are still under way fail.
		if closed = rt.rdb.Close(); errors.Is(closed, redis.ErrClosed) {
			closed = nil
		}
		if telling != nil {
			telling = rt.closeBeacon()
		}
	}
	return errors.Join(errors.Join(stopped...), drained, telling, closed, rt.locker.Close())
}

// Close is Shutdown without waiting: the ctx of work that is under way ends at once.
func (rt *Runtime) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := rt.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// String returns that of the file in force.
func (rt *Runtime) String() string { return "config.Runtime of " + rt.File().String() }

func (rt *Runtime) log() *slog.Logger {
	if rt.options.log != nil {
		return rt.options.log
	}
	return slog.Default()
}
