package ops_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
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
)

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

func (n *next) requireTold(t *testing.T, kind string, want int64) {
	require.Equal(t, want, n.told[kind])
}

// Each kind is counted as itself, from many goroutines at once, and told on.
func TestRecorder_CountsRequestsRecordsAndTasks(t *testing.T) {
	t.Parallel()
	recorder, seen := ops.NewRecorder(), &next{told: map[string]int64{}}
	requests, records := recorder.Requests(seen), recorder.Idempotency(seen)
	s := recorder.Snapshot()
	assert.Empty(t, s.Requests)
	assert.Empty(t, s.Tasks)
	assert.Nil(t, s.Config)

	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i, kind := range ops.RequestKinds {
				for range i + 1 {
					requests.OnOutcome(t.Context(), httplock.Outcome{Kind: kind, Name: "POST /pay", Key: "secret"})
				}
			}
			for i, kind := range ops.RecordKinds {
				for range i + 1 {
					records.OnEvent(t.Context(), idempotency.Event{Kind: kind, Name: "secret"})
				}
			}
			for i, kind := range ops.TaskKinds {
				for range i + 1 {
					recorder.CountTask("mail", kind)
				}
			}
		})
	}
	callers.Wait()
	s = recorder.Snapshot()
	require.Len(t, s.Requests, 1)
	require.Equal(t, "POST /pay", s.Requests[0].Route)
	require.Len(t, s.Tasks, 1)
	require.Equal(t, "mail", s.Tasks[0].Type)
	for i, kind := range ops.RequestKinds {
		want := 8 * int64(i+1)
		require.Equal(t, want, s.Requests[0].Outcomes[kind], kind)
		seen.requireTold(t, "request "+string(kind), want)
	}
	for i, kind := range ops.RecordKinds {
		want := 8 * int64(i+1)
		require.Equal(t, want, s.Idempotency[kind], kind)
		seen.requireTold(t, "record "+string(kind), want)
	}
	for i, kind := range ops.TaskKinds {
		require.Equal(t, 8*int64(i+1), s.Tasks[0].Outcomes[kind], kind)
	}
	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.NotContains(t, string(text), "secret")
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

func TestRecorder_BoundsRoutesAndTypes(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	requests := recorder.Requests(nil)
	for i := range 10_000 {
		requests.OnOutcome(t.Context(), httplock.Outcome{Kind: httplock.OutcomeRan, Name: fmt.Sprint("POST /", i)})
		recorder.CountTask(fmt.Sprint("type ", i), "done")
	}
	s := recorder.Snapshot()
	require.Len(t, s.Requests, 65)
	require.Len(t, s.Tasks, 65)
	runs, done := map[string]int64{}, map[string]int64{}
	for i := range s.Requests {
		runs[s.Requests[i].Route] = s.Requests[i].Outcomes[httplock.OutcomeRan]
		done[s.Tasks[i].Type] = s.Tasks[i].Outcomes["done"]
	}
	require.EqualValues(t, 10_000-64, runs[ops.Other])
	require.EqualValues(t, 10_000-64, done[ops.Other])
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

// BenchmarkRecorder_Request is what the event of a request costs.
func BenchmarkRecorder_Request(b *testing.B) {
	requests, ctx := ops.NewRecorder().Requests(nil), b.Context()
	e := httplock.Outcome{Kind: httplock.OutcomeRan, Name: "POST /orders/:id/pay", Key: "order:1", Status: 200, Took: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		requests.OnOutcome(ctx, e)
	}
}

func TestRecorder_RequestAllocatesNothing(t *testing.T) {
	recorder, ctx := ops.NewRecorder(), t.Context()
	requests, records := recorder.Requests(nil), recorder.Idempotency(nil)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		requests.OnOutcome(ctx, httplock.Outcome{Kind: httplock.OutcomeRan, Name: "POST /pay", Key: "k"})
		records.OnEvent(ctx, idempotency.Event{Kind: idempotency.EventBegun, Name: "k"})
		recorder.CountTask("mail", "done")
	}))
}
