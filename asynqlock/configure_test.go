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
)

type ctxKey struct{}

func TestConfigure_OwnHooksAreCalledForFailuresOnly(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
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
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		cfg := b.config()
		cfg.RetryDelayFunc = nil
		b.serve(t, cfg, b.perKey()(asynq.HandlerFunc(
			func(context.Context, *asynq.Task) error { return errOops })))
		id := b.enqueue(t, task())
		info := b.untilState(t, id, asynq.TaskStateRetry)
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
	require.Equal(t, asynq.Config{}, cfg)
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

func TestNewServer_LeavesTheConfigAsItWas(t *testing.T) {
	t.Parallel()
	var cfg asynq.Config
	_, err := asynqlock.NewServer(redistest.Client(t, redisAt("127.0.0.1:1")), cfg)
	require.NoError(t, err)
	require.Nil(t, cfg.IsFailure)
	require.Nil(t, cfg.BaseContext)
}

func TestConfigure_WithoutItAWarningIsLoggedOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, key)
		log := &testbed.Log{}
		ran := make(chan struct{}, 1)
		b.start(t, b.config(), b.perKey(asynqlock.WithLogger(log.Logger()))(asynq.HandlerFunc(
			func(_ context.Context, task *asynq.Task) error {
				assert.Equal(t, "free", task.Type())
				ran <- struct{}{}
				return nil
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
	mux.Handle("no guard", asynqlock.FromConfig(noGuard{})(mustNotRun(t)))
	mux.Handle("bad key", asynqlock.PerKey(b.locker.Guard(core.RejectConflicts), asynqlock.Header("h:", ""))(mustNotRun(t)))
	b.serve(t, b.config(), mux)
	for _, kind := range []string{"no guard", "bad key"} {
		id := b.enqueue(t, asynq.NewTask(kind, []byte(payload)), asynq.MaxRetry(3))
		info := b.untilState(t, id, asynq.TaskStateRetry)
		require.Zero(t, info.Retried, kind)
		require.Contains(t, info.LastErr, "misconfigured")
		b.enqueue(t, asynq.NewTask(kind, []byte(payload)), asynq.MaxRetry(0), asynq.TaskID(kind))
		b.untilState(t, kind+"~1", asynq.TaskStateScheduled)
	}
	b.requireArchived(t, 0)
	require.Equal(t, 2, strings.Count(log.String(), "level=ERROR"), log.String())
}

// noGuard are Tasks whose guard is missing.
type noGuard struct{}

func (noGuard) Task(string) (*core.Guard, func([]byte, map[string]string) (string, error), bool) {
	return nil, nil, true
}

func TestPerKey_AMistakePanics(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	guard := b.locker.Guard(core.RejectConflicts)
	for says, register := range map[string]func(){
		"the guard is nil: make one": func() { asynqlock.PerKey(nil, walletKey) },
		"the key function is nil":    func() { asynqlock.PerKey(guard, nil) },
		"WithMaxAge(-1ns)":           func() { asynqlock.PerKey(guard, walletKey, asynqlock.WithMaxAge(-1)) },
	} {
		func() {
			defer func() {
				err, is := recover().(error)
				require.True(t, is, says)
				require.ErrorIs(t, err, core.ErrInvalidOption)
				require.ErrorContains(t, err, says)
			}()
			register()
		}()
	}
}

func TestNew_ReportsMistakes(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	guard := b.locker.Guard(core.RejectConflicts)
	for name, build := range map[string]func() (asynq.MiddlewareFunc, error){
		"no guard": func() (asynq.MiddlewareFunc, error) { return asynqlock.New(nil, walletKey) },
		"broken guard": func() (asynq.MiddlewareFunc, error) {
			return asynqlock.New((*core.Locker)(nil).Guard(core.RejectConflicts), walletKey)
		},
		"no key":     func() (asynq.MiddlewareFunc, error) { return asynqlock.New(guard, nil) },
		"nil option": func() (asynq.MiddlewareFunc, error) { return asynqlock.New(guard, walletKey, nil) },
		"zero delay": func() (asynq.MiddlewareFunc, error) {
			return asynqlock.New(guard, walletKey, asynqlock.WithDelay(0, 1))
		},
		"swapped delays": func() (asynq.MiddlewareFunc, error) {
			return asynqlock.New(guard, walletKey, asynqlock.WithDelay(2e9, 1e9))
		},
		"short age": func() (asynq.MiddlewareFunc, error) { return asynqlock.New(guard, walletKey, asynqlock.WithMaxAge(1)) },
		"nil skip":  func() (asynq.MiddlewareFunc, error) { return asynqlock.New(guard, walletKey, asynqlock.WithSkip(nil)) },
		"nil logger": func() (asynq.MiddlewareFunc, error) {
			return asynqlock.New(guard, walletKey, asynqlock.WithLogger(nil))
		},
	} {
		m, err := build()
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		require.Nil(t, m, name)
	}
	m, err := asynqlock.New(guard, walletKey, soon)
	require.NoError(t, err)
	require.NotNil(t, m)
}
