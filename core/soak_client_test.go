//go:build soak

package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/history"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// modeOptions are the ways to hold a key that the engine has, and how to ask for them.
var modeOptions = map[history.Mode]func(limit int) []core.AcquireOption{
	history.Exclusive: func(int) []core.AcquireOption { return nil },
	history.Shared:    func(int) []core.AcquireOption { return []core.AcquireOption{core.Shared()} },
	history.Counted:   func(limit int) []core.AcquireOption { return []core.AcquireOption{core.Counted(limit)} },
}

type mode struct {
	Mode  history.Mode
	Limit int
}

// workload is what clients do. Its percentages are of calls.
type workload struct {
	Keys  int
	Epoch time.Duration // after which the clients go on with fresh keys
	Modes []mode        // chosen from for each call
	Odd   []mode        // the same for every second key, if it has modes of its own

	MinLease, MaxLease time.Duration
	Fixed              int           // leases that are not renewed
	Try                int           // TryAcquire; the rest is Acquire
	MaxWait            time.Duration // of an Acquire
	Abandon            int           // of fixed leases: never released
	Overrun            int           // work that is longer than the lease
	Deaf               int           // of holders whose lease was lost: released only long after
	MaxWork            time.Duration // of the rest
	MaxIdle            time.Duration // between calls
	Retries            int           // go-redis's; -1: none

	// Trouble that a client makes for itself.
	SlowRenewals time.Duration // a pipeline is sent up to this much later
}

// standsInLine reports whether any of its calls may wait for another.
func (w workload) standsInLine() bool { return w.Try < 100 }

// clientVar makes this test binary a client: a soakClient in JSON.
const clientVar = "PERKEY_TEST_CLIENT"

func init() { children[clientVar] = runClient }

// soakClient is one process of a workload, or stands for one.
type soakClient struct {
	Addr, Prefix, File string
	Sentinels          []string // they name the primary, in place of Addr
	Client             int
	Seed               uint64
	Goroutines         int
	Timeout            time.Duration // go-redis's
	Workload           workload
	Older              bool // it runs the scripts of before thin records; see older_test.go

	hooks       []redis.Hook
	unavailable func(error) // takes why calls were
	rec         *history.Recorder
	ids         atomic.Int64
	odd         atomic.Pointer[error]
}

// runClient works until its standard input ends.
func runClient() {
	var c soakClient
	if err := json.Unmarshal([]byte(os.Getenv(clientVar)), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run works until ctx ends. An error is an answer that no fault explains.
func (c *soakClient) run(ctx context.Context) (err error) {
	if c.rec, err = history.Create(c.File); err != nil {
		return err
	}
	if c.Older {
		hook, err := olderScripts()
		if err != nil {
			return err
		}
		c.hooks = append(c.hooks, hook)
	}
	rdb := c.connect()
	defer func() { err = errors.Join(err, rdb.Close()) }()
	options := []core.Option{core.WithPrefix(c.Prefix)}
	if len(c.Sentinels) == 0 || c.Client%2 == 0 { // else the locker makes its own, and has to see that it follows
		reserve := c.connect()
		defer func() { err = errors.Join(err, reserve.Close()) }()
		if d := c.Workload.SlowRenewals; d > 0 {
			reserve.AddHook(hooks{pipeline: func(next func() error) error {
				time.Sleep(rand.N(d))
				return next()
			}})
		}
		options = append(options, core.WithRenewalClient(reserve))
	}
	locker, err := core.New(rdb, options...)
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	for i := range c.Goroutines {
		rng := rand.New(rand.NewPCG(c.Seed, uint64(c.Client)<<16|uint64(i)))
		work.Go(func() {
			for ctx.Err() == nil && c.odd.Load() == nil {
				c.once(ctx, locker, rng)
				time.Sleep(upTo(rng, c.Workload.MaxIdle))
			}
		})
	}
	work.Wait()
	err = errors.Join(locker.Close(), c.rec.Close())
	if odd := c.odd.Load(); odd != nil {
		err = errors.Join(*odd, err)
	}
	return err
}

func (c *soakClient) connect() *redis.Client {
	var rdb *redis.Client
	if len(c.Sentinels) > 0 {
		options := redistest.AppOptions(c.Sentinels)
		options.MaxRetries, options.PoolSize = c.Workload.Retries, 4*c.Goroutines
		options.DialTimeout, options.ReadTimeout, options.WriteTimeout = c.Timeout, c.Timeout, c.Timeout
		rdb = redis.NewFailoverClient(options)
	} else {
		rdb = redis.NewClient(&redis.Options{
			Addr: c.Addr, MaxRetries: c.Workload.Retries, PoolSize: 4 * c.Goroutines,
			DialTimeout: c.Timeout, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout,
		})
	}
	for _, h := range c.hooks {
		rdb.AddHook(h)
	}
	return rdb
}

// once acquires a key, works, and releases it.
func (c *soakClient) once(ctx context.Context, locker *core.Locker, rng *rand.Rand) {
	w := c.Workload
	key, modes := rng.IntN(w.Keys), w.Modes
	if key%2 == 1 && w.Odd != nil {
		modes = w.Odd
	}
	mode := modes[rng.IntN(len(modes))]
	op := c.op(history.Op{
		Kind: history.Acquire,
		Key:  fmt.Sprintf("k%d.%d", key, history.Now()/int64(w.Epoch)),
		Mode: mode.Mode, Limit: mode.Limit,
		Lease: w.MinLease + upTo(rng, w.MaxLease-w.MinLease),
	})
	fixed := percent(rng, w.Fixed)
	options := append(modeOptions[mode.Mode](mode.Limit), core.Named(fmt.Sprint(c.Client), ""))
	if fixed {
		options = append(options, core.FixedLease(op.Lease))
	} else {
		options = append(options, core.LeaseTTL(op.Lease))
	}
	try, wait := percent(rng, w.Try), upTo(rng, w.MaxWait)

	// The lease's ctx comes from this one. It must not end with the time-out of an Acquire that was granted.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	acquire := locker.Acquire
	term := op.Lease
	if op.Wait = !try; try {
		acquire, wait = locker.TryAcquire, time.Hour
	} else {
		op.Lease = max(op.Lease, time.Second) // which one has who was handed the key
	}
	op.Call = history.Now()
	c.rec.Write(op)
	timeout := time.AfterFunc(wait, cancel)
	lease, err := acquire(ctx, op.Key, options...)
	op.Return = history.Now()
	timeout.Stop()
	if err != nil {
		c.failed(ctx, op, err, rng)
		return
	}
	op.Outcome, op.Fence, op.Seen = history.OK, lease.Fence(), op.Return
	c.rec.Write(op)
	work := upTo(rng, w.MaxWork)
	if percent(rng, w.Overrun) {
		work = term + upTo(rng, term)
	}
	c.work(op, lease, work)
	if ctx.Err() == nil && lease.Context().Err() != nil && percent(rng, w.Deaf) {
		time.Sleep(20*time.Millisecond + upTo(rng, term))
	}
	if fixed && percent(rng, w.Abandon) {
		op.Over = op.Return
		c.rec.Write(op)
		return
	}
	c.release(op, lease)
}

// failed records an acquire that was not granted.
func (c *soakClient) failed(ctx context.Context, op *history.Op, err error, rng *rand.Rand) {
	switch {
	case errors.Is(err, core.ErrConflict):
		op.Outcome, op.Over = history.Conflict, op.Return
	case errors.Is(err, core.ErrUnavailable), ctx.Err() != nil && errors.Is(err, ctx.Err()):
		op.Over = op.Return
	default:
		c.odd.CompareAndSwap(nil, &err)
	}
	c.rec.Write(op)
	if errors.Is(err, core.ErrUnavailable) {
		if c.unavailable != nil {
			c.unavailable(err)
		}
		time.Sleep(10*time.Millisecond + upTo(rng, 40*time.Millisecond)) // calls fail at once while Redis is down
	}
}

// work looks at the lease's ctx all the while, and ends with it.
func (c *soakClient) work(op *history.Op, lease *core.Lease, d time.Duration) {
	const note = 20 * time.Millisecond
	look := max(500*time.Microsecond, d/2000)
	end, noted := op.Return+int64(d), op.Return
	for {
		now := history.Now()
		if lease.Context().Err() != nil {
			return
		}
		op.Alive = now
		if now-noted > int64(note) {
			c.rec.Write(op)
			noted = now
		}
		if now >= end {
			return
		}
		time.Sleep(min(look, time.Duration(end-now)))
	}
}

func (c *soakClient) release(op *history.Op, lease *core.Lease) {
	release := c.op(history.Op{Kind: history.Release, Key: op.Key, Of: op.ID, Call: history.Now()})
	c.rec.Write(op, release)
	err := lease.Release(context.Background())
	release.Return = history.Now()
	switch {
	case err == nil:
		release.Outcome = history.OK
	case errors.Is(err, core.ErrLeaseLost):
		release.Outcome = history.Lost
	case errors.Is(err, core.ErrUnavailable):
	default:
		c.odd.CompareAndSwap(nil, &err)
	}
	op.Over, release.Over = release.Return, release.Return
	c.rec.Write(op, release)
}

func (c *soakClient) op(op history.Op) *history.Op {
	op.ID, op.Client = int64(c.Client)<<40|c.ids.Add(1), c.Client
	return &op
}

func upTo(rng *rand.Rand, d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(rng.Int64N(int64(d)))
}

func percent(rng *rand.Rand, p int) bool { return rng.IntN(100) < p }
