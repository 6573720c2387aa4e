package ops

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/nilcheck"
	"github.com/perkey-go/perkey/internal/unixms"
)

//go:embed lua/*.lua
var scripts embed.FS

var (
	beaconScript   = luascript.Load(scripts, "beacon")
	withdrawScript = luascript.Load(scripts, "withdraw")
)

const (
	maxCall      = 16 << 10      // bytes
	maxEntry     = maxCall - 512 // of it: the rest is names, and what Redis needs for a string
	localMost    = 32            // leases, and calls that wait
	defaultEvery = 10 * time.Second
	minEvery     = 100 * time.Millisecond
	maxEvery     = time.Minute
	maxLockers   = 16
	// beaconTimeout bounds a call where go-redis lets it be bounded, and how long Close waits.
	beaconTimeout = 2 * time.Second
)

// ttlOf is for how long an entry lasts: two after it may be lost. [Process.SilentAfter] has the interval of it.
func ttlOf(every time.Duration) time.Duration { return every * 7 / 2 }

// keys in Redis, in one slot.
func entryKey(prefix, id string) string { return prefix + ":ops:{fleet}:process:" + id }
func indexKey(prefix string) string     { return prefix + ":ops:{fleet}:processes" }
func watchesKey(prefix string) string   { return prefix + ":ops:{fleet}:watches" }

// Beacon reports its process to Redis, for [ReadFleet]. It has one goroutine until Close.
type Beacon struct {
	rdb      redis.UniversalClient
	recorder *Recorder
	prefix   string
	lockers  []*core.Locker
	service  string
	every    time.Duration
	log      *slog.Logger
	entry    entry // what does not change

	mu      sync.Mutex
	workers []*delayqueue.Worker

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	failed bool // the last call has, and was logged
	mute   bool // the last events could not be published, which was logged
	told   bool // Redis may have an entry
	outbox *outbox
}

// BeaconOption configures a Beacon.
type BeaconOption func(*Beacon) error

// WithWorkers adds the process's Workers to the reports. It may be given more than once; see also
// [Beacon.AddWorkers].
func WithWorkers(workers ...*delayqueue.Worker) BeaconOption {
	return func(b *Beacon) error {
		if slices.Contains(workers, nil) {
			return invalid("WithWorkers: a worker is nil")
		}
		b.workers = append(b.workers, workers...)
		return nil
	}
}

// WithLockers adds Lockers of the process to the reports, beside the one that the Beacon is started
// with: 16 in all. It may be given more than once.
func WithLockers(lockers ...*core.Locker) BeaconOption {
	return func(b *Beacon) error {
		if slices.Contains(lockers, nil) {
			return invalid("WithLockers: a locker is nil")
		}
		if b.lockers = append(b.lockers, lockers...); len(b.lockers) > maxLockers {
			return invalid("WithLockers: more than %d", maxLockers)
		}
		return nil
	}
}

// WithService names the process's service, in at most 100 bytes. Default: the path of its main
// package.
func WithService(name string) BeaconOption {
	return func(b *Beacon) error {
		if name == "" || name != shown(name) {
			return invalid("WithService(%q): want 1 to %d bytes of UTF-8", name, maxLabel)
		}
		b.service = name
		return nil
	}
}

// WithInterval sets the time between two reports, with a jitter of a tenth. A report expires after
// three and a half times as long. Default 10 s, so a process that was killed is no longer shown
// after 35 s; 100 ms to 1 min.
func WithInterval(d time.Duration) BeaconOption {
	return func(b *Beacon) error {
		if d < minEvery || d > maxEvery {
			return invalid("WithInterval(%s): want %s to %s", d, minEvery, maxEvery)
		}
		b.every = d
		return nil
	}
}

// WithLogger sets where the Beacon logs that Redis does not take its reports, and that it takes
// them again: once each. Default: slog's default logger.
func WithLogger(log *slog.Logger) BeaconOption {
	return func(b *Beacon) error {
		if log == nil {
			return invalid("WithLogger(nil)")
		}
		b.log = log
		return nil
	}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("ops: %w: %s", core.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// StartBeacon returns a Beacon that reports the process to Redis at once, and then every 10 s,
// until Close: what the Recorder has counted, what the Locker holds and waits for, and which
// process it is. Each report is one call of at most 16 KiB. If that is too little, each list is cut
// to the same length: Process.Cut says how many entries are left out.
//
// Give each Recorder one Beacon: two would overwrite one another's list of what is watched. The Beacon's id is the
// Locker's, and its names in Redis begin with the Locker's prefix. rdb stays the caller's to close, after the Beacon;
// it may be another Redis than that of the locks, and is the one to give to ReadFleet. While it does not answer, the
// Beacon tries again at its interval, one call at a time. StartBeacon does not wait for Redis. Its error wraps
// [core.ErrInvalidOption].
func StartBeacon(rdb redis.UniversalClient, recorder *Recorder, locker *core.Locker, opts ...BeaconOption) (*Beacon, error) {
	switch {
	case nilcheck.IsNil(rdb):
		return nil, invalid("StartBeacon: the redis client is nil")
	case recorder == nil:
		return nil, invalid("StartBeacon: the recorder is nil")
	case locker == nil:
		return nil, invalid("StartBeacon: the locker is nil")
	}
	b := &Beacon{
		rdb: bounded(rdb), recorder: recorder, prefix: locker.Prefix(), lockers: []*core.Locker{locker}, every: defaultEvery, log: slog.Default(),
		done: make(chan struct{}),
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalid("StartBeacon: an option is nil")
		}
		if err := opt(b); err != nil {
			return nil, err
		}
	}
	b.entry, b.outbox = b.describe(), newOutbox()
	b.ctx, b.cancel = context.WithCancel(context.Background())
	go b.run()
	return b, nil
}

// bounded is the client with time-outs of ours, where it lets us.
func bounded(rdb redis.UniversalClient) redis.UniversalClient {
	if client, ok := rdb.(*redis.Client); ok {
		return client.WithTimeout(beaconTimeout)
	}
	return rdb
}

// describe is what does not change of the process.
func (b *Beacon) describe() entry {
	host, _ := os.Hostname()
	e := entry{ID: b.lockers[0].ID(), Host: shown(host), PID: os.Getpid(), Service: b.service, Started: unixms.Of(time.Now()), TTL: ttlOf(b.every).Milliseconds()}
	for _, l := range b.lockers {
		e.Lockers = append(e.Lockers, l.ID())
	}
	program := built()
	e.Version, e.Go = shown(program.version), shown(program.golang)
	e.Service = cmp.Or(e.Service, shown(program.path))
	return e
}

// AddWorkers adds more Workers of the process to the Beacon's reports, from the next one on. It is
// safe for concurrent use.
func (b *Beacon) AddWorkers(workers ...*delayqueue.Worker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range workers {
		if w != nil {
			b.workers = append(b.workers, w)
		}
	}
}

// Close ends the Beacon and removes its report from Redis. It waits up to 2 s for a
// command that go-redis has under way; after that it returns an error that wraps
// [context.DeadlineExceeded], and the Beacon's goroutine ends when go-redis gives up. It
// may be called twice.
func (b *Beacon) Close() error {
	b.cancel()
	timer := time.NewTimer(beaconTimeout)
	defer timer.Stop()
	select {
	case <-b.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("ops: close: a command is still under way: %w", context.DeadlineExceeded)
	}
}

func (b *Beacon) run() {
	defer close(b.done)
	tell, publish := time.NewTimer(0), time.NewTimer(publishEvery)
	defer tell.Stop()
	defer publish.Stop()
	for {
		select {
		case <-tell.C:
			b.tell()
			tell.Reset(b.every*9/10 + rand.N(b.every/5))
		case <-b.outbox.first:
			publish.Reset(publishEvery)
		case <-publish.C:
			b.publish()
		case <-b.ctx.Done():
			b.publish()
			b.withdraw()
			return
		}
	}
}

// tell tells of the process, once, and learns what is watched.
func (b *Beacon) tell() {
	var reply any
	payload, err := b.payload()
	if err == nil {
		reply, err = b.call(b.ctx, beaconScript, []string{entryKey(b.prefix, b.entry.ID), indexKey(b.prefix), watchesKey(b.prefix)},
			b.entry.ID, b.entry.TTL, payload)
	}
	if b.ctx.Err() != nil {
		b.told = true // perhaps
		return
	}
	b.told = b.told || err == nil
	if err == nil {
		b.recorder.watched.Store(newWatched(b.outbox, reply))
	}
	if failed := err != nil; failed != b.failed {
		b.failed = failed
		if failed {
			b.log.Warn("ops: the beacon cannot report to Redis", slog.Any("error", err))
		} else {
			b.log.Info("ops: the beacon reports to Redis again")
		}
	}
}

// payload is what is told now.
func (b *Beacon) payload() ([]byte, error) {
	var local core.Local
	for _, l := range b.lockers {
		local = joinLocal(local, l.Local(localMost))
	}
	b.mu.Lock()
	workers := make([]delayqueue.Local, 0, len(b.workers))
	for _, w := range b.workers {
		workers = append(workers, w.Local())
	}
	b.mu.Unlock()
	e := newEntry(b.recorder.Snapshot(), local, workers)
	fixed := b.entry
	fixed.At, fixed.Since, fixed.Held, fixed.Waiting = e.At, e.Since, e.Held, e.Waiting
	fixed.Bounds, fixed.Unclaimed, fixed.Renewals, fixed.lists = e.Bounds, e.Unclaimed, e.Renewals, e.lists
	fixed.Idempotency, fixed.Config = e.Idempotency, e.Config
	return fixed.marshal(maxEntry)
}

// joinLocal joins what two Lockers say: the oldest of both.
func joinLocal(a, b core.Local) core.Local {
	a.Held, a.Waiting = a.Held+b.Held, a.Waiting+b.Waiting
	a.Leases, a.Waits = append(a.Leases, b.Leases...), append(a.Waits, b.Waits...)
	slices.SortStableFunc(a.Leases, func(a, b core.LocalLease) int { return cmp.Compare(b.Held, a.Held) })
	slices.SortStableFunc(a.Waits, func(a, b core.LocalWait) int { return cmp.Compare(b.Waited, a.Waited) })
	a.Leases, a.Waits = a.Leases[:min(len(a.Leases), localMost)], a.Waits[:min(len(a.Waits), localMost)]
	return a
}

// publish publishes what has happened to what is watched.
func (b *Beacon) publish() {
	batches := b.outbox.take()
	if len(batches) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), beaconTimeout)
	defer cancel()
	pipe := b.rdb.Pipeline()
	for watch, batch := range batches {
		batch.Process = b.entry.ID
		if payload, err := encode(batch); err == nil {
			pipe.Publish(ctx, watchChannel(b.prefix, watch), payload)
		}
	}
	_, err := pipe.Exec(ctx)
	if err != nil {
		b.outbox.lost(batches)
	}
	if failed := err != nil; failed != b.mute {
		if b.mute = failed; failed {
			b.log.Warn("ops: watched events cannot be published", slog.Any("error", err))
		}
	}
}

// withdraw has Redis forget the process. If Redis is away, it does so by itself.
func (b *Beacon) withdraw() {
	b.recorder.watched.Store(nil)
	if b.told && !b.failed {
		_, _ = b.call(context.WithoutCancel(b.ctx), withdrawScript, []string{entryKey(b.prefix, b.entry.ID), indexKey(b.prefix)}, b.entry.ID)
	}
}

// call calls a script once: the next one comes soon enough.
func (b *Beacon) call(ctx context.Context, script *luascript.Script, keys []string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, beaconTimeout)
	defer cancel()
	all := script.Args(make([]any, 0, 3+len(keys)+len(args)), len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	call := script.Call(ctx, append(all, args...), true)
	call.Send(ctx, b.rdb)
	reply, err := call.Result()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return reply, err
}
