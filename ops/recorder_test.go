package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/retry"
)

func newLocker(t testing.TB, env *redistest.Env, opts ...core.Option) *core.Locker {
	t.Helper()
	return testbed.NewLocker(t, env.Client(t), append([]core.Option{core.WithPrefix(env.Prefix)}, opts...)...)
}

func lockStats(t testing.TB, s ops.Snapshot, name string) ops.LockStats {
	t.Helper()
	for _, stats := range s.Locks {
		if stats.Name == name {
			return stats
		}
	}
	t.Fatalf("nothing is counted of %q", name)
	return ops.LockStats{}
}

// told counts what it is told.
type told struct {
	core.NopObserver
	mu       sync.Mutex
	outcomes map[core.OutcomeKind]int64
	ends     int64
}

func (o *told) OnOutcome(_ context.Context, e core.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcomes[e.Kind]++
}

func (o *told) OnReleased(context.Context, core.Released) { o.end() }
func (o *told) OnLost(context.Context, core.Lost)         { o.end() }

func (o *told) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ends++
}

func (o *told) ended() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ends
}

// TestRecorder_CountsWhatHappens is long since it is one story.
func TestRecorder_CountsWhatHappens(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		next := &told{outcomes: map[core.OutcomeKind]int64{}}
		recorder := ops.NewRecorder()
		locker := newLocker(t, env, core.WithObserver(recorder.Locks(next)), core.WithMaxWaiters(3, 1000))
		guards := map[string]*core.Guard{
			"reject": locker.Guard(core.RejectConflicts),
			"wait":   locker.Guard(retry.Policy{MaxWait: 20 * time.Millisecond}),
		}
		var callers sync.WaitGroup
		calls := int64(0)
		for name, guard := range guards {
			for i := range 10 {
				calls += 20
				callers.Go(func() {
					for j := range 20 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i)*3*time.Millisecond)
						_ = guard.Do(ctx, core.Call{Key: fmt.Sprint("k", j%2), Name: name}, func(context.Context) error {
							time.Sleep(time.Millisecond)
							return nil
						})
						cancel()
					}
				})
			}
		}
		callers.Wait()
		calls += 5 // that do not depend on time
		holder, err := locker.Acquire(t.Context(), "k0", core.Named("holder", ""))
		require.NoError(t, err)
		patient := locker.Guard(retry.Policy{MaxWait: time.Second})
		for _, guard := range []*core.Guard{guards["reject"], patient} {
			require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k0", Name: "late"}, func(context.Context) error { return nil }), core.ErrConflict)
		}
		require.NoError(t, holder.Release(t.Context()))
		_, err = locker.AcquireAll(t.Context(), []string{"a", "b", "c"}, core.Named("all", ""))
		require.NoError(t, err)
		lease := testbed.Take(t, locker, "lost", core.Named("all", ""))
		forced, err := locker.ForceRelease(t.Context(), "lost", lease.Fence())
		require.NoError(t, err)
		require.True(t, forced)
		redistest.Eventually(t, func() bool {
			s, ends := recorder.Snapshot(), int64(0)
			for _, stats := range s.Locks {
				ends += stats.Hold.Count
			}
			return lockStats(t, s, "all").Lost[core.LossForced] == 1 && next.ended() == ends
		}, "the loss is counted, and the next observer is told the same")

		s := recorder.Snapshot()
		sum := map[core.OutcomeKind]int64{}
		counted := int64(0)
		for _, stats := range s.Locks {
			for kind, n := range stats.Calls {
				if n > 0 {
					sum[kind] += n
				}
				counted += n
			}
			assert.Zero(t, stats.Waiting)
		}
		assert.Equal(t, calls, counted)
		assert.Equal(t, next.outcomes, sum, "the next observer is told the same")
		assert.Equal(t, int64(3), lockStats(t, s, "all").Held)
		for name := range guards {
			stats := lockStats(t, s, name)
			assert.Zero(t, stats.Held)
			assert.Equal(t, stats.Calls[core.OutcomeAcquired], stats.Hold.Count)
			assert.GreaterOrEqual(t, stats.Hold.Sum, time.Duration(stats.Hold.Count)*time.Millisecond)
		}
		assert.Zero(t, lockStats(t, s, "reject").Wait.Count)
		late := lockStats(t, s, "late")
		assert.Equal(t, int64(2), late.Calls[core.OutcomeConflict])
		assert.Equal(t, int64(1), late.Wait.Count)
		assert.Zero(t, late.Hold.Count)

		for _, all := range [][]ops.HotKey{s.Conflicts, s.Waits, s.Holds} {
			assert.NotEmpty(t, all)
			for _, hot := range all {
				assert.Contains(t, []string{"k0", "k1"}, hot.Key, "no key that nobody else wanted")
				assert.Positive(t, hot.Weight)
			}
		}
	})
}

func TestRecorder_KnowsWhatIsStillWarnedOf(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	locks, queues := recorder.Locks(nil), recorder.Queues(nil)
	for _, node := range []string{"a", "b", "a"} {
		locks.OnWarning(t.Context(), core.Warning{Kind: core.WarnUnreachable, Node: node})
	}
	locks.OnWarning(t.Context(), core.Warning{Kind: core.WarnUnreachable, Node: "b", Resolved: true})
	queues.OnWarning(t.Context(), delayqueue.Warning{Queue: "ship", Kind: delayqueue.WarnNoWorker})
	queues.OnWarning(t.Context(), delayqueue.Warning{Queue: "ship", Kind: delayqueue.WarnNoWorker, Resolved: true})
	assert.Equal(t, []ops.WarningStats{
		{Source: "locks", Kind: string(core.WarnUnreachable), Open: 1},
		{Source: "queues", Kind: string(delayqueue.WarnNoWorker), Open: 0},
	}, recorder.Snapshot().Warnings)

	locks.OnRenewed(t.Context(), core.Renewed{Leases: 7, Latency: 5 * time.Millisecond})
	locks.OnRenewed(t.Context(), core.Renewed{Leases: 2, Latency: 10 * time.Minute, Err: errors.New("away")})
	renewals := recorder.Snapshot().Renewals
	assert.Equal(t, int64(9), renewals.Leases)
	assert.Equal(t, int64(1), renewals.Failed)
	assert.Equal(t, int64(2), renewals.Took.Count)
	assert.Equal(t, int64(1), renewals.Took.Over)
	assert.Equal(t, ops.Bucket{AtMost: 5 * time.Millisecond, Count: 1}, renewals.Took.Buckets[1])
}

// Whatever names come, from many callers at once, a bounded number is kept, nothing is lost and each is fit to be shown.
func TestRecorder_BoundsNames(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	locks, requests := recorder.Locks(nil), recorder.Requests(nil)
	const callers, each = 8, 1000
	var calls sync.WaitGroup
	for range callers {
		calls.Go(func() {
			for i := range each {
				name := fmt.Sprint(i)
				locks.OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeConflict, Key: name, Name: name})
				requests.OnOutcome(t.Context(), httplock.Outcome{Kind: httplock.OutcomeRan, Name: name})
				recorder.CountTask(name, "done")
			}
		})
	}
	calls.Wait()
	s := recorder.Snapshot()
	require.Len(t, s.Locks, 65)
	require.Len(t, s.Requests, 65)
	require.Len(t, s.Tasks, 65)
	var conflicts, runs, done, others int64
	for i := range s.Locks {
		conflicts += s.Locks[i].Calls[core.OutcomeConflict]
		runs += s.Requests[i].Outcomes[httplock.OutcomeRan]
		done += s.Tasks[i].Outcomes["done"]
		if s.Locks[i].Name == ops.Other {
			others = s.Locks[i].Calls[core.OutcomeConflict]
		}
	}
	assert.Equal(t, []int64{callers * each, callers * each, callers * each}, []int64{conflicts, runs, done})
	assert.Greater(t, others, int64(callers*each/2))
	assert.Len(t, s.Conflicts, ops.SketchSize)

	recorder = ops.NewRecorder()
	locks = recorder.Locks(nil)
	long := strings.Repeat("x", 100)
	for _, name := range []string{long + "a", long + "b", "a\xff", "a\xfe", "", ops.Other} {
		locks.OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeAcquired, Leases: 1, Key: "k", Name: name})
	}
	s = recorder.Snapshot()
	var names []string
	for _, stats := range s.Locks {
		names = append(names, stats.Name)
	}
	assert.Equal(t, []string{"", "a\uFFFD", ops.Other, long}, names)
	assert.Equal(t, int64(2), lockStats(t, s, long).Held)
}

// A kind that is added to a package must be counted here too.
func TestRecorder_KnowsEveryKind(t *testing.T) {
	t.Parallel()
	assert.ElementsMatch(t, constants(t, "../core", "OutcomeKind"), texts(ops.Outcomes))
	assert.ElementsMatch(t, constants(t, "../core", "LossKind"), texts(ops.LossKinds))
	assert.ElementsMatch(t, constants(t, "../delayqueue", "EnqueueKind"), texts(ops.EnqueueKinds))
	assert.ElementsMatch(t, constants(t, "../delayqueue", "Outcome"), texts(ops.SettleKinds))
	assert.ElementsMatch(t, constants(t, "../httplock", "OutcomeKind"), texts(ops.RequestKinds))
	assert.ElementsMatch(t, constants(t, "../idempotency", "EventKind"), texts(ops.RecordKinds))
	assert.ElementsMatch(t, constants(t, "../asynqlock", "OutcomeKind"), ops.TaskKinds)
	assert.ElementsMatch(t, constants(t, "../config", "ReloadKind"), ops.ReloadKinds)
}

func texts[K ~string](kinds []K) (all []string) {
	for _, kind := range kinds {
		all = append(all, string(kind))
	}
	return all
}

// constants are the values of the constants of a type.
func constants(t *testing.T, dir, typ string) (values []string) {
	t.Helper()
	product := func(file fs.FileInfo) bool { return !strings.HasSuffix(file.Name(), "_test.go") }
	packages, err := parser.ParseDir(token.NewFileSet(), dir, product, parser.SkipObjectResolution) //nolint:staticcheck // no types are needed
	require.NoError(t, err)
	for _, pkg := range packages {
		ast.Inspect(pkg, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if name, ok := spec.Type.(*ast.Ident); ok && name.Name == typ {
				for _, value := range spec.Values {
					if literal, ok := value.(*ast.BasicLit); ok {
						text, err := strconv.Unquote(literal.Value)
						require.NoError(t, err)
						values = append(values, text)
					}
				}
			}
			return true
		})
	}
	require.NotEmpty(t, values)
	return values
}

func TestRecorder_AllocatesNothing(t *testing.T) {
	recorder, ctx := ops.NewRecorder(), t.Context()
	locks, requests, records := recorder.Locks(nil), recorder.Requests(nil), recorder.Idempotency(nil)
	outcome := core.Outcome{Kind: core.OutcomeAcquired, Key: "k", Name: "pay", Leases: 1}
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		locks.OnOutcome(ctx, outcome)
		locks.OnReleased(ctx, core.Released{Key: "k", Name: "pay", Held: time.Millisecond})
		requests.OnOutcome(ctx, httplock.Outcome{Kind: httplock.OutcomeRan, Name: "POST /pay", Key: "k"})
		records.OnEvent(ctx, idempotency.Event{Kind: idempotency.EventBegun, Name: "k"})
		recorder.CountTask("mail", "done")
	}))
}

func TestRecorder_KeepsWhatSomebodyMayWantToKnowOf(t *testing.T) {
	t.Parallel()
	ctx, recorder := t.Context(), ops.NewRecorder()
	locks, queues := recorder.Locks(nil), recorder.Queues(nil)
	for i := range 10 {
		locks.OnOutcome(ctx, core.Outcome{Kind: core.OutcomeAcquired, Key: "k", Leases: 1})
		locks.OnOutcome(ctx, core.Outcome{Kind: core.OutcomeShed, Key: fmt.Sprint("k", i), Name: "n", ID: "7", Waited: time.Second, Cause: core.ErrConflict})
		locks.OnLost(ctx, core.Lost{Key: "k", Name: fmt.Sprint("n", i), Kind: core.LossForced, Cause: (*badError)(nil)})
	}
	locks.OnLost(ctx, core.Lost{Key: "k", Fence: 9, Kind: core.LossGone, Cause: errors.New(strings.Repeat("x", 1000))})
	locks.OnWarning(ctx, core.Warning{Kind: core.WarnUnreachable, Node: "h:1", Detail: "away", Err: errors.New("refused")})
	locks.OnWarning(ctx, core.Warning{Kind: core.WarnUnreachable, Node: "h:1", Resolved: true})
	queues.OnEnqueued(ctx, delayqueue.Enqueued{Queue: "ship", Kind: delayqueue.EnqueueStored})
	queues.OnEnqueued(ctx, delayqueue.Enqueued{Queue: "ship", Kind: delayqueue.EnqueueUnavailable, ID: "8"})
	queues.OnReaped(ctx, delayqueue.Reaped{Queue: "ship", Expired: 4})
	queues.OnReaped(ctx, delayqueue.Reaped{Queue: "ship", Redelivered: 4})
	queues.OnSettled(ctx, delayqueue.Settled{Queue: "ship", Outcome: delayqueue.OutcomeExpired, Message: delayqueue.Message{ID: "9"}})
	queues.OnSettled(ctx, delayqueue.Settled{Queue: "ship", Outcome: delayqueue.OutcomeDead, Message: delayqueue.Message{ID: "9"}, Err: errors.New("broken")})
	queues.OnSettled(ctx, delayqueue.Settled{Queue: "ship", Outcome: delayqueue.OutcomeDone})
	queues.OnWarning(ctx, delayqueue.Warning{Queue: "ship", Kind: delayqueue.WarnNoWorker})
	events := recorder.Snapshot().Events
	var seen []string
	for _, e := range events {
		assert.WithinDuration(t, time.Now(), e.At, time.Minute)
		seen = append(seen, fmt.Sprint(e.Source, " ", e.Kind, " ", e.Name, e.Queue, " ", e.Count))
	}
	assert.Equal(t, []string{
		"queues warning no_workership 1", "queues dead ship 1", "queues expired ship 5", "queues unavailable ship 1", "locks resolved unreachable 1", "locks warning unreachable 1", "locks lost  1",
		"locks forced n9 1", "locks forced n8 1", "locks forced n7 1", "locks forced n6 1", "locks forced n5 1",
		"locks forced n4 1", "locks forced n3 1", "locks forced n2 1", "locks forced n1 1", "locks forced n0 1", "locks shed n 10",
	}, seen)
	shed := events[len(events)-1]
	assert.Equal(t, [3]string{"k0", "7", core.ErrConflict.Error()}, [3]string{shed.Key, shed.ID, shed.Detail})
	assert.Equal(t, time.Second, shed.Took)
	assert.Equal(t, "h:1: away: refused", events[5].Detail)
	assert.Len(t, events[6].Detail, 200)
	assert.Equal(t, int64(9), events[6].Fence)
	assert.Equal(t, "an error that cannot be shown", events[7].Detail)
	for i := range 100 {
		locks.OnLost(ctx, core.Lost{Key: "k", Name: fmt.Sprint("late", i)})
	}
	assert.Len(t, recorder.Snapshot().Events, 64)
	assert.Equal(t, "late99", recorder.Snapshot().Events[0].Name)
}

type badError struct{ text string }

func (e *badError) Error() string { return e.text }

// next is told, and counts that.
type next struct {
	mu   sync.Mutex
	told map[string]int64
}

func (n *next) add(kind string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told[kind]++
}

func (n *next) OnOutcome(_ context.Context, e httplock.Outcome) { n.add("request " + string(e.Kind)) }

func (n *next) OnEvent(_ context.Context, e idempotency.Event) { n.add("record " + string(e.Kind)) }

// eachOften tells of each kind as often as of no other.
func eachOften[K any](kinds []K, tell func(K)) {
	for i, kind := range kinds {
		for range i + 1 {
			tell(kind)
		}
	}
}

// requireEachAsItself requires that eight callers have told so of kinds.
func requireEachAsItself[K comparable](t *testing.T, kinds []K, counted map[K]int64) {
	t.Helper()
	for i, kind := range kinds {
		require.EqualValues(t, 8*(i+1), counted[kind], kind)
	}
}

// Each kind is counted as itself, from many goroutines at once, and told on.
func TestRecorder_CountsEachKind(t *testing.T) {
	t.Parallel()
	recorder, seen := ops.NewRecorder(), &next{told: map[string]int64{}}
	requests, records := recorder.Requests(seen), recorder.Idempotency(seen)
	locks, queues := recorder.Locks(core.NopObserver{}), recorder.Queues(delayqueue.NopObserver{})
	s := recorder.Snapshot()
	assert.Empty(t, s.Requests)
	assert.Empty(t, s.Tasks)
	assert.Nil(t, s.Config)

	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			eachOften(ops.RequestKinds, func(kind httplock.OutcomeKind) {
				requests.OnOutcome(t.Context(), httplock.Outcome{Kind: kind, Name: "POST /pay", Key: "secret"})
			})
			eachOften(ops.RecordKinds, func(kind idempotency.EventKind) {
				records.OnEvent(t.Context(), idempotency.Event{Kind: kind, Name: "secret"})
			})
			eachOften(ops.TaskKinds, func(kind string) { recorder.CountTask("mail", kind) })
			eachOften(ops.Outcomes, func(kind core.OutcomeKind) {
				locks.OnOutcome(t.Context(), core.Outcome{Kind: kind, Name: "pay", Key: "secret"})
			})
			eachOften(ops.LossKinds, func(kind core.LossKind) { locks.OnLost(t.Context(), core.Lost{Kind: kind, Name: "pay", Key: "k"}) })
			eachOften(ops.EnqueueKinds, func(kind delayqueue.EnqueueKind) {
				queues.OnEnqueued(t.Context(), delayqueue.Enqueued{Queue: "ship", Kind: kind})
			})
			eachOften(ops.SettleKinds, func(kind delayqueue.Outcome) {
				queues.OnSettled(t.Context(), delayqueue.Settled{Queue: "ship", Outcome: kind})
			})
		})
	}
	callers.Wait()
	s = recorder.Snapshot()
	require.Len(t, s.Requests, 1)
	require.Equal(t, "POST /pay", s.Requests[0].Route)
	require.Len(t, s.Tasks, 1)
	require.Equal(t, "mail", s.Tasks[0].Type)
	requireEachAsItself(t, ops.RequestKinds, s.Requests[0].Outcomes)
	requireEachAsItself(t, ops.RecordKinds, s.Idempotency)
	requireEachAsItself(t, ops.TaskKinds, s.Tasks[0].Outcomes)
	for i, kind := range ops.RequestKinds {
		require.EqualValues(t, 8*(i+1), seen.told["request "+string(kind)])
	}
	for i, kind := range ops.RecordKinds {
		require.EqualValues(t, 8*(i+1), seen.told["record "+string(kind)])
	}
	text, err := json.Marshal([]any{s.Requests, s.Idempotency, s.Tasks})
	require.NoError(t, err)
	require.NotContains(t, string(text), "secret")
	requireEachAsItself(t, ops.Outcomes, s.Locks[0].Calls)
	requireEachAsItself(t, ops.LossKinds, s.Locks[0].Lost)
	requireEachAsItself(t, ops.EnqueueKinds, s.Queues[0].Enqueued)
	requireEachAsItself(t, ops.SettleKinds, s.Queues[0].Settled)
}

// A client that makes up methods does not use up the names.
func TestRecorder_OddMethodsAreOneName(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		recorder := ops.NewRecorder()
		guard := newLocker(t, env, core.WithObserver(recorder.Locks(core.NopObserver{}))).Guard(core.RejectConflicts)
		mux := http.NewServeMux()
		key := func(*http.Request) (string, error) { return "k", nil }
		mux.Handle("/pay", httplock.PerKey(guard, key, httplock.WithObserver(recorder.Requests(nil)))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		for i := range 100 {
			mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(fmt.Sprint("PAY", i), "/pay", nil))
		}
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/pay", nil))
		s := recorder.Snapshot()
		routes, names := map[string]int64{}, map[string]int64{}
		for _, r := range s.Requests {
			routes[r.Route] = r.Outcomes[httplock.OutcomeRan]
		}
		for _, l := range s.Locks {
			names[l.Name] = l.Calls[core.OutcomeAcquired]
		}
		want := map[string]int64{"OTHER /pay": 100, "POST /pay": 1}
		require.Equal(t, want, routes)
		require.Equal(t, want, names)
	})
}

func TestRecorder_KnowsTheConfigurationInForce(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	none := map[string]int64{"done": 0, "unchanged": 0, "refused": 0}
	recorder.CountReload("", 1, "a")
	require.Equal(t, &ops.ConfigStats{Version: 1, Hash: "a", Reloads: none}, recorder.Snapshot().Config)
	recorder.CountReload("refused", 1, "a")
	require.Equal(t, &ops.ConfigStats{Version: 1, Hash: "a", Refused: true, Reloads: map[string]int64{"done": 0, "unchanged": 0, "refused": 1}}, recorder.Snapshot().Config)
	recorder.CountReload("done", 2, "b")
	recorder.CountReload("unchanged", 2, "b")
	require.Equal(t, &ops.ConfigStats{Version: 2, Hash: "b", Reloads: map[string]int64{"done": 1, "unchanged": 1, "refused": 1}}, recorder.Snapshot().Config)
}

// A Recorder does not silence what is logged without one.
func TestRecorder_LogsLostLeasesAndWarnings(t *testing.T) { // not parallel: it looks at slog's default
	said := testbed.CaptureLog(t)
	env, recorder := redistest.Embedded(t), ops.NewRecorder()
	locker := newLocker(t, env, core.WithObserver(recorder.Locks(nil)))
	lease := testbed.Take(t, locker, "k")
	forced, err := locker.ForceRelease(t.Context(), "k", lease.Fence())
	require.NoError(t, err)
	require.True(t, forced)
	redistest.Eventually(t, func() bool { return recorder.Snapshot().Locks[0].Lost[core.LossForced] == 1 }, "it is lost")
	redistest.Eventually(t, func() bool { return strings.Contains(said.String(), "perkey: lease lost") }, "it is logged")

	recorder.Queues(nil).OnWarning(t.Context(), delayqueue.Warning{Queue: "ship", Kind: delayqueue.WarnNoWorker})
	require.Contains(t, said.String(), "delayqueue: warning")
}

// What Space-Saving promises: a weight is between the true one and the error above it, and no key with more than
// 1/size of all is missing.
func TestSketch_FindsTheHotKeys(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 1))
		zipf := rand.NewZipf(random, 1.1+random.Float64(), 1, 100_000)
		var sketch ops.Sketch
		now, exact, total := time.Unix(0, 0), map[string]float64{}, 0.0
		for range 20_000 {
			key, weight := fmt.Sprint(zipf.Uint64()), float64(1+random.IntN(5))
			sketch.Add(now, key, weight)
			exact[key] += weight
			total += weight
		}
		top := sketch.Top(now)
		require.Len(t, top, ops.SketchSize)
		found := map[string]bool{}
		for i, hot := range top {
			found[hot.Key] = true
			assert.GreaterOrEqual(t, hot.Weight, exact[hot.Key])
			assert.LessOrEqual(t, hot.Weight-hot.Error, exact[hot.Key])
			assert.LessOrEqual(t, hot.Error, total/ops.SketchSize)
			assert.True(t, i == 0 || hot.Weight <= top[i-1].Weight, "the hottest first")
		}
		for key, weight := range exact {
			assert.False(t, weight > total/ops.SketchSize && !found[key], "%s with %v of %v", key, weight, total)
		}
	}
}

func TestSketch_ForgetsWhatWasHot(t *testing.T) {
	t.Parallel()
	var sketch ops.Sketch
	now := time.Unix(0, 0)
	sketch.Add(now, "was hot", 1000)
	sketch.Add(now, "once", 0.5)
	now = now.Add(4 * time.Minute)
	sketch.Add(now, "is hot", 100)
	top := sketch.Top(now)
	require.Len(t, top, 3)
	assert.Equal(t, ops.HotKey{Key: "is hot", Weight: 100}, top[0])
	assert.Equal(t, ops.HotKey{Key: "was hot", Weight: 62.5}, top[1])
	assert.Empty(t, sketch.Top(now.Add(24*time.Hour)))
	sketch.Add(now.Add(48*time.Hour), "again", 1)
	assert.Len(t, sketch.Top(now.Add(48*time.Hour)), 1)
}
