package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// ledger is what an observer was told of each call, by the call's ID.
type ledger struct {
	core.NopObserver
	mu       sync.Mutex
	outcomes map[string][]core.Outcome
	waits    map[string]int
	held     int // leases
}

func newLedger() *ledger {
	return &ledger{outcomes: map[string][]core.Outcome{}, waits: map[string]int{}}
}

func (o *ledger) OnOutcome(_ context.Context, e core.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcomes[e.ID] = append(o.outcomes[e.ID], e)
	o.held += e.Leases
}

func (o *ledger) OnWaiting(ctx context.Context, e core.Waiting) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waits[e.ID]++
	if end, ok := ctx.Value(endKey{}).(func()); ok {
		time.AfterFunc(5*time.Millisecond, end)
	}
}

func (o *ledger) OnReleased(context.Context, core.Released) { o.gone() }
func (o *ledger) OnLost(context.Context, core.Lost)         { o.gone() }

func (o *ledger) gone() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held--
}

func (o *ledger) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waits)
}

// entered is one call as a test makes it.
type entered struct {
	l          *core.Locker
	key, id    string
	token      string // to resume
	policy     core.ConflictPolicy
	opts       []core.AcquireOption
	noWork     bool
	beforeWait error // of Call.BeforeWait
}

func (c entered) options() []core.AcquireOption {
	return append([]core.AcquireOption{core.Named("n", c.id)}, c.opts...)
}

func (c entered) fn() func(context.Context) error {
	if c.noWork {
		return nil
	}
	return nothing
}

func releaseOf(lease interface{ Release(context.Context) error }, err error) error {
	if err == nil {
		if err = unlessLost(lease.Release(context.Background())); errors.Is(err, core.ErrUnavailable) {
			err = nil // it had the key
		}
	}
	return err
}

// unlessLost is nil for a call that had the key, and lost it at the end of its work.
func unlessLost(err error) error {
	if errors.Is(err, core.ErrLeaseLost) {
		return nil
	}
	return err
}

// waysIn are all ways to call for a key.
var waysIn = map[string]func(ctx context.Context, c entered) error{
	"TryAcquire": func(ctx context.Context, c entered) error {
		return releaseOf(c.l.TryAcquire(ctx, c.key, c.options()...))
	},
	"Acquire": func(ctx context.Context, c entered) error { return releaseOf(c.l.Acquire(ctx, c.key, c.options()...)) },
	"Resume":  func(ctx context.Context, c entered) error { return releaseOf(c.l.Resume(ctx, c.token, c.options()...)) },
	"TryAcquireAll": func(ctx context.Context, c entered) error {
		return releaseOf(c.l.TryAcquireAll(ctx, []string{c.key, c.key + "'"}, c.options()...))
	},
	"AcquireAll": func(ctx context.Context, c entered) error {
		return releaseOf(c.l.AcquireAll(ctx, []string{c.key, c.key + "'"}, c.options()...))
	},
	"Do": func(ctx context.Context, c entered) error {
		return unlessLost(c.l.Do(ctx, c.key, c.fn(), c.options()...))
	},
	"Guard.Do": func(ctx context.Context, c entered) error {
		call := core.Call{Key: c.key, Name: "n", ID: c.id}
		if c.beforeWait != nil {
			call.BeforeWait = func() error { return c.beforeWait }
		}
		return unlessLost(c.l.Guard(c.policy, c.opts...).Do(ctx, call, c.fn()))
	},
}

var (
	triesOnce = []string{"TryAcquire", "TryAcquireAll"}
	waits     = []string{"Acquire", "Do", "AcquireAll", "Guard.Do"} // the guard with a policy that waits
	byKey     = slices.Concat(triesOnce, waits)
	allWays   = slices.Concat(byKey, []string{"Resume"})
)

const callsEach = 12

var callNumber atomic.Int64

// made is a call that has ended, or gone on in a panic.
type made struct {
	entered
	err      error
	panicked bool
}

// makeCalls makes calls in one way, all at the same time. meanwhile runs beside them; it may be nil.
func makeCalls(ctx makeContext, way string, n int, meanwhile func(), call func(i int) entered) []made {
	all := make([]made, n)
	var wg sync.WaitGroup
	for i := range all {
		all[i].entered = call(i)
		all[i].id = fmt.Sprintf("%s-%d", way, callNumber.Add(1))
		wg.Go(func() {
			ctx, cancel := ctx()
			defer cancel()
			all[i].panicked = true
			defer func() { _ = recover() }()
			all[i].err = waysIn[way](ctx, all[i].entered)
			all[i].panicked = false
		})
	}
	if meanwhile != nil {
		meanwhile()
	}
	wg.Wait()
	return all
}

// requireOutcomes checks the law: each call has one outcome, and it is the call's error's. It returns the outcomes.
func (o *ledger) requireOutcomes(t *testing.T, calls []made) []core.Outcome {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	var outcomes []core.Outcome
	for _, c := range calls {
		told := o.outcomes[c.id]
		require.Len(t, told, 1, "outcomes of %s, which returned %v", c.id, c.err)
		e := told[0]
		if c.panicked {
			require.Error(t, e.Cause)
			require.Equal(t, core.OutcomeError, e.Kind)
		} else {
			require.Equal(t, c.err, e.Cause)
			require.Equal(t, e.Cause == nil, e.Kind == core.OutcomeAcquired)
		}
		require.Equal(t, "n", e.Name)
		require.GreaterOrEqual(t, e.Waited, time.Duration(0))
		require.LessOrEqual(t, o.waits[c.id], 1)
		require.Equal(t, o.waits[c.id] == 1, e.DidWait)
		require.Equal(t, e.Kind == core.OutcomeAcquired, e.Fence > 0)
		if e.Kind != core.OutcomeAcquired {
			require.Zero(t, e.Leases)
		}
		outcomes = append(outcomes, e)
	}
	return outcomes
}

// sides are what the cases of the law stand on.
type sides struct {
	*testing.T
	env   *redistest.Env
	proxy *redistest.Proxy // of fragileSides
	l     *core.Locker
	seen  *ledger
	rival *core.Locker
}

func newSides(t *testing.T, env *redistest.Env, opts ...core.Option) *sides {
	t.Helper()
	return sidesOn(t, env, env.Client(t), opts...)
}

// fragileSides are those whose Locker stands behind a proxy, and waits for Redis only for timeout.
func fragileSides(t *testing.T, env *redistest.Env, timeout time.Duration, opts ...core.Option) *sides {
	t.Helper()
	proxy := redistest.NewProxy(t, env.Addr)
	opt := &redis.Options{Addr: proxy.Addr}
	impatient(opt)
	opt.ReadTimeout, opt.WriteTimeout = timeout, timeout
	s := sidesOn(t, env, redistest.Client(t, opt), opts...)
	s.proxy = proxy
	return s
}

func sidesOn(t *testing.T, env *redistest.Env, rdb *redis.Client, opts ...core.Option) *sides {
	t.Helper()
	s := &sides{T: t, env: env, seen: newLedger(), rival: newLocker(t, env)}
	s.l = lockerOn(t, rdb, env.Prefix, append(opts, core.WithObserver(s.seen))...)
	warm(t, s.l)
	return s
}

func (s *sides) hold(key string) *core.Lease {
	s.Helper()
	lease := acquired(s, s.rival, key)
	s.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}

// token is of a key that is held and not known to s.l.
func (s *sides) token(key string) string {
	s.Helper()
	token, err := acquired(s, s.rival, key).Detach(s.Context())
	require.NoError(s, err)
	return token
}

func (s *sides) requireNothingHeld() {
	s.Helper()
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	require.Zero(s, s.seen.held, "leases that were granted, and not released")
}

func unbounded() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

func within(d time.Duration) makeContext {
	return func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), d)
	}
}

func cancelledAfter(d time.Duration, cause error) makeContext {
	return func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(context.Background())
		if d == 0 {
			cancel(cause)
		}
		timer := time.AfterFunc(d, func() { cancel(cause) })
		return ctx, func() { timer.Stop(); cancel(nil) }
	}
}

type makeContext = func() (context.Context, context.CancelFunc)

// each makes calls in some ways, all of which have to end alike.
func (s *sides) each(name string, kind core.OutcomeKind, ways []string, ctx makeContext, call entered, check func(e core.Outcome)) {
	s.Helper()
	call.l = s.l
	for _, way := range ways {
		calls := makeCalls(ctx, way, callsEach, nil, func(i int) entered {
			c := call
			if c.key == "each" {
				c.key = fmt.Sprintf("%s %s %d", name, way, i)
			}
			if c.token == "each" && way == "Resume" {
				c.token = s.token(c.key)
			}
			return c
		})
		for _, e := range s.seen.requireOutcomes(s.T, calls) {
			require.Equal(s, kind, e.Kind, "%s by %s: %v", name, way, e.Cause)
			require.Equal(s, way == "Resume", e.Resumed)
			if check != nil {
				check(e)
			}
		}
	}
}

// patient calls are for keys of their own, and wait.
var patient = entered{key: "each", token: "each", policy: untilGranted}

// whenItWaits makes a ctx that ends when its call has begun to wait, with err.
func whenItWaits(err, cause error) makeContext {
	return func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(context.Background())
		return context.WithValue(endingContext{ctx, err}, endKey{}, func() { cancel(cause) }), func() { cancel(nil) }
	}
}

type endKey struct{}

type endingContext struct {
	context.Context
	err error
}

func (c endingContext) Err() error {
	if c.Context.Err() != nil {
		return c.err
	}
	return nil
}

// oneWait lets a call wait once, and then decides as its last word says.
func oneWait(last func(context.Context, core.Conflict) (core.Decision, error)) core.ConflictPolicy {
	return policyFunc(func(ctx context.Context, c core.Conflict) (core.Decision, error) {
		if c.Attempt == 1 {
			return core.RetryAfter(time.Millisecond), nil
		}
		return last(ctx, c)
	})
}

func reject(context.Context, core.Conflict) (core.Decision, error) { return core.Reject(), nil }

// untilGranted waits whatever the caller's deadline.
var untilGranted = policyFunc(func(context.Context, core.Conflict) (core.Decision, error) { return core.RetryAfter(time.Hour), nil })

func deferAll(context.Context, core.Conflict) (core.Decision, error) {
	return core.Deferred(core.Ticket{ID: "ticket", Queue: "q"}), nil
}
