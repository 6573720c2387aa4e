package asynqlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/retry"
)

type ctxKey struct{}

func TestConfigure_OwnHooksAreCalledForFailuresOnly(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		release := b.hold(t, key)
		var judged, delayed, handled atomic.Int64
		mine := errors.New("mine") // not a failure, says the user
		check := func(err error) {
			if !errors.Is(err, mine) {
				t.Errorf("a hook was called with %v", err)
			}
		}
		cfg := b.config()
		cfg.IsFailure = func(err error) bool {
			check(err)
			judged.Add(1)
			return false
		}
		cfg.RetryDelayFunc = func(_ int, err error, _ *asynq.Task) time.Duration {
			check(err)
			delayed.Add(1)
			return time.Millisecond
		}
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			check(err)
			handled.Add(1)
		})
		cfg.BaseContext = func() context.Context { return context.WithValue(context.Background(), ctxKey{}, "base") }
		var runs atomic.Int64
		done := make(chan struct{})
		b.serve(t, cfg, b.perKey(soon)(asynq.HandlerFunc(
			func(ctx context.Context, _ *asynq.Task) error {
				assert.Equal(t, "base", ctx.Value(ctxKey{}))
				if runs.Add(1) < 4 {
					return mine
				}
				close(done)
				return nil
			})))
		b.enqueue(t, task(), asynq.MaxRetry(1))
		b.untilConflicts(t, 5)
		release()
		get(t, done)
		for _, n := range []*atomic.Int64{&judged, &delayed, &handled} {
			require.EqualValues(t, 3, n.Load())
		}
	})
}

func TestConfigure_DefaultsStayInForceWithoutOwnHooks(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		cfg := b.config()
		cfg.RetryDelayFunc = nil
		b.serve(t, cfg, b.perKey()(fails(errOops)))
		info := b.untilState(t, b.enqueue(t, task()), asynq.TaskStateRetry)
		require.Equal(t, 1, info.Retried)
		require.Equal(t, "oops", info.LastErr)
		require.GreaterOrEqual(t, info.NextProcessAt.Sub(info.LastFailedAt), 14*time.Second, "asynq's exponential delay")
	})
}

func TestConfigure_HooksOutsideAServer(t *testing.T) {
	t.Parallel()
	var cfg asynq.Config
	require.NoError(t, asynqlock.Configure(&cfg, redistest.Client(t, redisAt("127.0.0.1:1"))))
	require.Nil(t, cfg.ErrorHandler)
	require.False(t, cfg.IsFailure(nil))
	require.True(t, cfg.IsFailure(errOops))
	require.True(t, cfg.IsFailure(core.ErrConflict), "a handler's own")
	require.True(t, cfg.IsFailure(asynq.ErrLeaseExpired))
	require.Equal(t, context.Background().Err(), cfg.BaseContext().Err())
}

func TestConfigure_ReportsMistakes(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, redisAt("127.0.0.1:1"))
	require.ErrorIs(t, asynqlock.Configure(nil, rdb), core.ErrInvalidOption)
	var cfg asynq.Config
	require.ErrorIs(t, asynqlock.Configure(&cfg, nil), core.ErrInvalidOption)
	_, err := asynqlock.NewServer(rdb, cfg)
	require.NoError(t, err)
	require.Equal(t, asynq.Config{}, cfg, "it is left as it was")
	for _, none := range []redis.UniversalClient{nil, (*redis.Client)(nil)} {
		srv, err := asynqlock.NewServer(none, cfg)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		require.Nil(t, srv)
	}
}

func TestConfigure_LooksOftenForTasksThatAreWoken(t *testing.T) { // not parallel: it looks at slog's default
	log := testbed.CaptureLog(t)
	rdb := redistest.Client(t, redisAt("127.0.0.1:1"))
	for _, test := range []struct {
		pending, delayed         time.Duration
		wantPending, wantDelayed time.Duration
		warnings                 int
	}{
		{0, 0, 50 * time.Millisecond, time.Second, 0},
		{20 * time.Millisecond, time.Minute, 20 * time.Millisecond, time.Minute, 0},
		{250 * time.Millisecond, 0, 250 * time.Millisecond, time.Second, 0},
		{time.Second, 0, time.Second, time.Second, 1},
	} {
		cfg := asynq.Config{TaskCheckInterval: test.pending, DelayedTaskCheckInterval: test.delayed}
		before := strings.Count(log.String(), "TaskCheckInterval is long")
		require.NoError(t, asynqlock.Configure(&cfg, rdb))
		require.Equal(t, []time.Duration{test.wantPending, test.wantDelayed}, []time.Duration{cfg.TaskCheckInterval, cfg.DelayedTaskCheckInterval})
		require.Equal(t, test.warnings, strings.Count(log.String(), "TaskCheckInterval is long")-before)
	}
	require.NotContains(t, log.String(), "this version of asynq is not known")
}

func TestConfigure_WithoutItAWarningIsLoggedOnce(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.hold(t, key)
		log := &testbed.Log{}
		ran := make(chan struct{}, 1)
		b.start(t, b.config(), b.perKey(asynqlock.WithLogger(log.Logger()))(does(func(_ context.Context, task *asynq.Task) {
			assert.Equal(t, "free", task.Type())
			ran <- struct{}{}
		})))
		b.enqueue(t, asynq.NewTask("free", []byte(`{"user_id":1}`)))
		get(t, ran)
		require.Contains(t, log.String(), "Configure was not applied", "the first task tells")
		// Not run and not lost: asynq counts failures, and archives.
		id := b.enqueue(t, task(), asynq.MaxRetry(2))
		info := b.untilState(t, id, asynq.TaskStateArchived)
		require.Equal(t, 2, info.Retried)
		require.Contains(t, info.LastErr, "the key is held (asynqlock.Configure was not applied)")
		id = b.enqueue(t, task(), asynq.MaxRetry(0))
		b.untilState(t, id, asynq.TaskStateArchived)
		require.EqualValues(t, 4, b.conflicts.n.Load())
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
		require.Contains(t, log.String(), "Configure was not applied")
		requireNoSecret(t, log.String())
	})
}

func TestGuard_ThatIsMisconfiguredRunsAndLosesNothing(t *testing.T) {
	log := testbed.CaptureLog(t)
	b := setup(t, redistest.Embedded(t))
	mux := asynq.NewServeMux()
	mux.Handle("no guard", asynqlock.FromConfig(&keyed{key: "k"})(mustNotRun(t)))
	mux.Handle("bad key", asynqlock.PerKey(b.locker.Guard(core.RejectConflicts), asynqlock.Header("h:", ""))(mustNotRun(t)))
	b.serve(t, b.config(), mux)
	for _, kind := range []string{"no guard", "bad key"} {
		info := b.untilState(t, b.enqueue(t, asynq.NewTask(kind, []byte(payload)), asynq.MaxRetry(3)), asynq.TaskStateRetry)
		require.Zero(t, info.Retried, kind)
		require.Contains(t, info.LastErr, "misconfigured")
		b.enqueue(t, asynq.NewTask(kind, []byte(payload)), asynq.MaxRetry(0), asynq.TaskID(kind))
		b.untilState(t, kind+"~1", asynq.TaskStateScheduled)
	}
	b.requireArchived(t, 0)
	require.Equal(t, 2, strings.Count(log.String(), "level=ERROR"), log.String())
	require.Contains(t, log.String(), "the guard is nil")
}

// New reports a mistake, with which PerKey panics.
func TestNew_ReportsMistakes(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	guard := b.locker.Guard(core.RejectConflicts)
	for _, c := range []struct {
		says  string
		guard *core.Guard
		key   asynqlock.KeyFunc
		opt   asynqlock.Option
	}{
		{"the guard is nil: make one", nil, walletKey, soon},
		{"", (*core.Locker)(nil).Guard(core.RejectConflicts), walletKey, soon},
		{"the key function is nil", guard, nil, soon},
		{"option", guard, walletKey, nil},
		{"WithDelay(0s", guard, walletKey, asynqlock.WithDelay(0, 1)},
		{"WithDelay(2s, 1s)", guard, walletKey, asynqlock.WithDelay(2e9, 1e9)},
		{"WithMaxAge(1ns)", guard, walletKey, asynqlock.WithMaxAge(1)},
		{"WithSkip", guard, walletKey, asynqlock.WithSkip(nil)},
		{"WithLogger", guard, walletKey, asynqlock.WithLogger(nil)},
		{"WithObserver", guard, walletKey, asynqlock.WithObserver(nil)},
		{"WithRecorder", guard, walletKey, asynqlock.WithRecorder((*ops.Recorder)(nil))},
	} {
		m, err := asynqlock.New(c.guard, c.key, c.opt)
		require.ErrorIs(t, err, core.ErrInvalidOption, c.says)
		require.ErrorContains(t, err, c.says)
		require.Nil(t, m, c.says)
		require.PanicsWithError(t, err.Error(), func() { asynqlock.PerKey(c.guard, c.key, c.opt) })
	}
}

// keyed gives all types of tasks one guard and one key.
type keyed struct {
	guard *core.Guard
	key   string
}

func (k *keyed) Task(string) (*core.Guard, func([]byte, map[string]string) (string, error), bool) {
	key := k.key
	return k.guard, func([]byte, map[string]string) (string, error) { return key, nil }, true
}

// What Tasks return counts at each task, also where only the key changes.
func TestFromConfig_TheKeyIsThatOfTheMoment(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.hold(t, "held")
		tasks := &keyed{b.locker.Guard(core.RejectConflicts), "free"}
		handler := asynqlock.FromConfig(tasks)(fails(nil))
		require.NoError(t, handler.ProcessTask(t.Context(), task()))
		tasks.key = "held"
		require.ErrorIs(t, handler.ProcessTask(t.Context(), task()), core.ErrConflict)
	})
}

// The middleware's locks have a user of their own, and tasks that are refused come back, or wait for their key.
func TestACL_TheSmallestRightsOfTheMiddleware(t *testing.T) {
	t.Parallel()
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "perkey"}
	b := setup(t, env)
	redistest.AddUser(t, b.rdb, "locks", redistest.Rights(t, "locks", "locks that are waited for", "an Observer"))
	limited := redistest.Client(t, &redis.Options{Addr: env.Addr, Username: "locks", Password: redistest.Password})
	redistest.AddUser(t, b.rdb, "tasks", append(redistest.Rights(t, "tasks of asynq that wait", "asynqlock.Waiting"),
		"~asynq:*", "+sadd", "+sismember", "+exists", "+hget", "+hset", "+hmget", "+lpush", "+get", "+set", "+del"))
	tasks := redistest.Client(t, &redis.Options{Addr: env.Addr, Username: "tasks", Password: redistest.Password})
	locker, err := core.New(limited, core.WithObserver(b.conflicts))
	require.NoError(t, err)
	defer func() { require.NoError(t, locker.Close()) }()

	for _, policy := range []core.ConflictPolicy{nil, retry.Policy{MaxWait: time.Minute}} {
		release := b.hold(t, key)
		b.conflicts.n.Store(0)
		ran := make(chan struct{}, 1)
		cfg := b.config()
		require.NoError(t, asynqlock.Configure(&cfg, tasks))
		stop := b.start(t, cfg, asynqlock.PerKey(locker.Guard(policy), walletKey, soon)(tells(ran)))
		b.enqueue(t, task(), asynq.MaxRetry(0))
		b.untilConflicts(t, 1)
		if policy == nil {
			b.listed(t, 1)
			waiting, _, err := asynqlock.Waiting(t.Context(), tasks, locker, key, 10)
			require.NoError(t, err)
			require.Len(t, waiting, 1)
		}
		release()
		get(t, ran)
		stop()
	}
	require.Empty(t, redistest.Denied(t, b.rdb), "nothing more was asked for")
}
