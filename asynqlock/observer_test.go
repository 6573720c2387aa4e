package asynqlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

type outcomes struct {
	asynqlock.NopObserver
	told chan asynqlock.Outcome
}

func (o outcomes) OnOutcome(_ context.Context, e asynqlock.Outcome) { o.told <- e }

// Each time that a task is handed out is told of once, whatever becomes of it. It is long since it is one story.
func TestObserver_IsToldOfEachEndOnce(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		b.subscribed(t, b.locker)
		o, recorder := outcomes{told: make(chan asynqlock.Outcome, 100)}, ops.NewRecorder()
		handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			switch task.Type() {
			case "fails":
				return errOops
			case "panics":
				panic("oops")
			case "loses":
				info, err := b.rival.Inspect(t.Context(), key)
				if err == nil && len(info.Holders) == 1 {
					_, err = b.rival.ForceRelease(t.Context(), key, info.Holders[0].Fence)
				}
				if err != nil {
					return err
				}
				<-ctx.Done()
			}
			return nil
		})
		skip := asynqlock.WithSkip(func(_ context.Context, task *asynq.Task) bool { return task.Type() == "skipped" })
		cfg := b.config()
		cfg.Concurrency = 1
		b.serve(t, cfg, b.perKey(late, skip, asynqlock.WithObserver(o), asynqlock.WithRecorder(recorder), asynqlock.WithMaxAge(time.Second))(handler))
		told := map[[2]string]int64{}
		next := func(taskType string, kind asynqlock.OutcomeKind) asynqlock.Outcome {
			t.Helper()
			e := get(t, o.told)
			require.Equal(t, kind, e.Kind, taskType)
			require.Equal(t, taskType, e.Type)
			require.Equal(t, b.queue, e.Queue)
			told[[2]string{taskType, string(kind)}]++
			return e
		}
		for taskType, kind := range map[string]asynqlock.OutcomeKind{
			"done": asynqlock.OutcomeDone, "fails": asynqlock.OutcomeFailed, "panics": asynqlock.OutcomeFailed, "loses": asynqlock.OutcomeLost, "skipped": asynqlock.OutcomeSkipped,
		} {
			id := b.enqueue(t, asynq.NewTask(taskType, []byte(payload)), asynq.MaxRetry(0))
			e := next(taskType, kind)
			require.Equal(t, id, e.ID)
			if taskType != "skipped" {
				require.Equal(t, key, e.Key)
			}
			require.Equal(t, kind != asynqlock.OutcomeDone && taskType != "panics" && taskType != "skipped", e.Err != nil, taskType)
		}
		b.enqueue(t, asynq.NewTask("bad", nil))
		require.Empty(t, next("bad", asynqlock.OutcomeNoKey).Key)

		release := b.hold(t, key)
		first := b.enqueue(t, asynq.NewTask("done", []byte(payload)), asynq.MaxRetry(1))
		e := next("done", asynqlock.OutcomeDeferred)
		require.Equal(t, first, e.ID)
		require.Positive(t, e.Delay)
		require.WithinDuration(t, time.Now(), e.Since, time.Minute)
		require.ErrorIs(t, e.Err, core.ErrConflict)
		second := b.enqueue(t, asynq.NewTask("done", []byte(payload)), asynq.MaxRetry(0))
		require.Equal(t, second+"~1", next("done", asynqlock.OutcomeDeferred).Clone)
		time.Sleep(1100 * time.Millisecond)
		b.untilState(t, first, asynq.TaskStateRetry)
		require.NoError(t, b.inspector.RunTask(b.queue, first))
		require.Equal(t, first, next("done", asynqlock.OutcomeTooOld).ID)
		release()
		require.Equal(t, second+"~1", next("done", asynqlock.OutcomeDone).ID)
		require.Empty(t, o.told)
		counted := map[[2]string]int64{}
		for _, stats := range recorder.Snapshot().Tasks {
			for kind, n := range stats.Outcomes {
				if n > 0 {
					counted[[2]string{stats.Type, kind}] = n
				}
			}
		}
		require.Equal(t, told, counted, "a Recorder counts the same")
	})
}

// refusingOnce refuses the first time, and then waits.
type refusingOnce struct{ asked atomic.Int64 }

func (*refusingOnce) Waits() bool { return true }

func (p *refusingOnce) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	if p.asked.Add(1) == 1 {
		return core.Reject(), nil
	}
	return core.RetryAfter(time.Hour), nil
}

// Its time can be over just when it asks for its key again.
func TestObserver_OfATaskThatAsksToTheEnd(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		b.hold(t, key)
		o, policy := outcomes{told: make(chan asynqlock.Outcome, 10)}, &refusingOnce{}
		b.serveElsewhere(t, b.config(), redistest.Another(t).Client(t), asynqlock.PerKey(b.locker.Guard(policy), walletKey, soon, asynqlock.WithObserver(o))(mustNotRun(t)))
		b.enqueue(t, task(), asynq.MaxRetry(0), asynq.Timeout(time.Second))
		e := get(t, o.told)
		require.Equal(t, asynqlock.OutcomeExpired, e.Kind, e.Err)
		require.ErrorIs(t, e.Err, core.ErrConflict)
		require.EqualValues(t, 2, policy.asked.Load())
	})
}

// Each guard tells its own, and an observer's panic is no task's failure.
func TestObserver_OfNestedGuards(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		inner, outer := outcomes{told: make(chan asynqlock.Outcome, 10)}, outcomes{told: make(chan asynqlock.Outcome, 10)}
		log := &testbed.Log{}
		guarded := asynqlock.PerKey(b.locker.Guard(core.RejectConflicts), asynqlock.Type("type:"), asynqlock.WithObserver(outer))(
			b.perKey(asynqlock.WithObserver(inner))(
				asynqlock.PerKey(b.locker.Guard(core.RejectConflicts), asynqlock.Type("innermost:"), asynqlock.WithObserver(panics{}), asynqlock.WithRecorder(panics{}), asynqlock.WithLogger(log.Logger()))(
					fails(nil))))
		b.hold(t, key)
		require.ErrorIs(t, guarded.ProcessTask(t.Context(), task()), core.ErrConflict)
		assert.Equal(t, "type:"+kind, get(t, outer.told).Key)
		e := get(t, inner.told)
		assert.Equal(t, key, e.Key)
		assert.Equal(t, asynqlock.OutcomeDeferred, e.Kind)
		require.NoError(t, guarded.ProcessTask(t.Context(), asynq.NewTask(kind, []byte(`{"user_id":1}`))))
		assert.Equal(t, asynqlock.OutcomeDone, get(t, outer.told).Kind)
		assert.Equal(t, asynqlock.OutcomeDone, get(t, inner.told).Kind)
		assert.Contains(t, log.String(), "the observer panicked")
		assert.Contains(t, log.String(), "oops")
		assert.Contains(t, log.String(), "miscounted")
	})
}

type panics struct{ asynqlock.NopObserver }

func (panics) OnOutcome(context.Context, asynqlock.Outcome) { panic("oops") }

func (panics) CountTask(string, string) { panic("miscounted") }
