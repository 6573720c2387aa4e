package lockprom_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/lockprom"
	"github.com/perkey-go/perkey/ops"
)

// busy tells recorder of calls of many keys and names, and of many queues.
func busy(recorder *ops.Recorder, keys, names, queues int) {
	ctx := context.Background()
	locks, work := recorder.Locks(core.NopObserver{}), recorder.Queues(delayqueue.NopObserver{})
	requests, records := recorder.Requests(nil), recorder.Idempotency(nil)
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			for i := caller; i < keys; i += 4 {
				key, name := fmt.Sprintf("secret-key-%d", i), fmt.Sprint("name ", i%names)
				locks.OnWaiting(ctx, core.Waiting{Key: key, Name: name})
				locks.OnOutcome(ctx, core.Outcome{Kind: core.OutcomeAcquired, Key: key, Name: name, ID: "secret-id", Leases: 1, DidWait: true, Waited: time.Millisecond})
				locks.OnReleased(ctx, core.Released{Key: key, Name: name, Held: time.Second})
				requests.OnOutcome(ctx, httplock.Outcome{Kind: httplock.OutcomeParked, Key: key, Name: name, Ticket: "secret-ticket"})
				records.OnEvent(ctx, idempotency.Event{Kind: idempotency.EventBegun, Name: key})
				recorder.CountTask(name, "done")
			}
		})
	}
	callers.Wait()
	for i := range queues {
		name := fmt.Sprint("queue ", i)
		work.OnEnqueued(ctx, delayqueue.Enqueued{Queue: name, Kind: delayqueue.EnqueueStored, ID: "secret-ticket", Principal: "secret-user"})
		work.OnSettled(ctx, delayqueue.Settled{Queue: name, Outcome: delayqueue.OutcomeDone})
	}
	recorder.CountReload("", 1, "0123456789abcdef")
	locks.OnLost(ctx, core.Lost{Key: "secret-key-lost", Name: "lost", Kind: core.LossExpired, Cause: errors.New("secret-cause")})
	locks.OnWarning(ctx, core.Warning{Kind: core.WarnUnreachable, Node: "secret-host:6379", Detail: "secret-detail"})
	work.OnWarning(ctx, delayqueue.Warning{Kind: delayqueue.WarnNoWorker, Queue: "queue 0"})
}

func scrape(t testing.TB, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	return w.Body.String()
}

func TestCollector_HasBoundedSeriesAndNoSecrets(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	busy(recorder, 1_000_000, 10_000, 10_000)
	text := scrape(t, lockprom.New(recorder))
	series := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
	}
	t.Log(series, "series")
	assert.LessOrEqual(t, series, 6000)
	assert.NotContains(t, text, "secret")
	assert.Contains(t, text, `name="other"`)
	assert.Contains(t, text, `queue="other"`)
	assert.Contains(t, text, `route="other"`)
	assert.Contains(t, text, `type="other"`)

	problems, err := testutil.CollectAndLint(lockprom.New(recorder))
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// assertTable wants families to be what a table of metrics says.
func assertTable(t *testing.T, want []ops.Metric, families []*dto.MetricFamily) {
	t.Helper()
	var exported []ops.Metric
	for _, family := range families {
		m := ops.Metric{Name: family.GetName(), Type: strings.ToLower(family.GetType().String()), Help: family.GetHelp()}
		for _, label := range family.GetMetric()[0].GetLabel() {
			m.Labels = append(m.Labels, label.GetName())
		}
		exported = append(exported, m)
	}
	for i := range want {
		slices.Sort(want[i].Labels)
	}
	assert.ElementsMatch(t, want, exported)
}

// What is exported is what Metrics says: names, types and labels.
func TestCollector_ExportsTheTable(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		recorder := ops.NewRecorder()
		busy(recorder, 10, 2, 2)
		rdb := env.Client(t)
		queue := testbed.NewQueue(t, rdb, "ship", delayqueue.WithPrefix(env.Prefix))
		testbed.Enqueue(t, queue, delayqueue.Job{Key: "k"})

		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(lockprom.New(recorder, queue, nil, queue)))
		families, err := registry.Gather()
		require.NoError(t, err)
		assertTable(t, lockprom.Metrics(), families)
		values := map[string]int{}
		for _, family := range families {
			values[family.GetName()] = int(total(family))
		}
		for name, value := range map[string]int{
			"perkey_lock_calls_total": 10, "perkey_lock_hold_seconds": 11, "perkey_lock_wait_seconds": 10, "perkey_lock_lost_total": 1,
			"perkey_lock_waiting": 0, "perkey_lock_held": -1, "perkey_warning": 2, "perkey_enqueue_total": 2,
			"perkey_queue_up": 1, "perkey_queue_messages": 1, "perkey_queue_due": 1, "perkey_build_info": 1,
			"perkey_http_requests_total": 10, "perkey_idempotency_total": 10, "perkey_tasks_total": 10,
			"perkey_config_reloads_total": 0, "perkey_config_refused": 0, "perkey_config_info": 1,
		} {
			assert.Equal(t, value, values[name], name)
		}
	})
}

// What is scraped is ops.Snapshot.Samples, which lockotel exports too.
func TestCollector_ExportsEachSample(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	busy(recorder, 100, 3, 3)
	recorder.Locks(core.NopObserver{}).OnRenewed(t.Context(), core.Renewed{Leases: 7, Latency: time.Hour, Err: errors.New("lost")})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(lockprom.New(recorder)))
	families, err := registry.Gather()
	require.NoError(t, err)
	var got, want []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			value := fmt.Sprint(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			if h := m.GetHistogram(); h != nil {
				value = fmt.Sprint(h.GetSampleCount(), h.GetSampleSum())
				for _, b := range h.GetBucket() {
					value += fmt.Sprint(" ", b.GetUpperBound(), ":", b.GetCumulativeCount())
				}
			}
			got = append(got, fmt.Sprint(family.GetName(), labels, " ", value))
		}
	}
	for _, s := range recorder.Snapshot().Samples() {
		labels, value := map[string]string{}, fmt.Sprint(s.Value)
		for i, label := range s.Metric.Labels {
			labels[label] = s.Labels[i]
		}
		if h := s.Histogram; h != nil {
			value = fmt.Sprint(h.Count, h.Sum.Seconds())
			below := int64(0)
			for _, b := range h.Buckets {
				below += b.Count
				value += fmt.Sprint(" ", b.AtMost.Seconds(), ":", below)
			}
		}
		want = append(want, fmt.Sprint(s.Metric.Name, labels, " ", value))
	}
	assert.ElementsMatch(t, want, got)
}

// No outcome and no cause is dropped, or counted as another. It is long since it is a list of kinds.
func TestCollector_ExportsEachKind(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	ctx, locks, queues := t.Context(), recorder.Locks(core.NopObserver{}), recorder.Queues(delayqueue.NopObserver{})
	var want []string
	n := 0
	expect := func(series, kind string, tell func()) {
		n++ // each kind as often as no other one
		for range n {
			tell()
		}
		want = append(want, fmt.Sprintf(series+" %d\n", kind, n))
	}
	for _, kind := range []core.OutcomeKind{
		core.OutcomeAcquired, core.OutcomeConflict, core.OutcomeDeferred, core.OutcomeShed, core.OutcomeCancelled,
		core.OutcomeDeadline, core.OutcomeUnavailable, core.OutcomeClosed, core.OutcomeError,
	} {
		expect(`perkey_lock_calls_total{name="pay",outcome=%q}`, string(kind), func() { locks.OnOutcome(ctx, core.Outcome{Kind: kind, Name: "pay", Key: "k"}) })
	}
	for _, kind := range []core.LossKind{core.LossExpired, core.LossGone, core.LossForced, core.LossReleased, core.LossClosed} {
		expect(`perkey_lock_lost_total{cause=%q,name="pay"}`, string(kind), func() { locks.OnLost(ctx, core.Lost{Kind: kind, Name: "pay", Key: "k"}) })
	}
	for _, kind := range []delayqueue.EnqueueKind{
		delayqueue.EnqueueStored, delayqueue.EnqueueDuplicate, delayqueue.EnqueueKeyFull, delayqueue.EnqueuePrincipalFull, delayqueue.EnqueueQueueFull,
		delayqueue.EnqueueTooLarge, delayqueue.EnqueueCancelled, delayqueue.EnqueueDeadline, delayqueue.EnqueueUnavailable, delayqueue.EnqueueError,
	} {
		expect(`perkey_enqueue_total{queue="ship",result=%q}`, string(kind), func() { queues.OnEnqueued(ctx, delayqueue.Enqueued{Queue: "ship", Kind: kind}) })
	}
	for _, outcome := range []delayqueue.Outcome{
		delayqueue.OutcomeDone, delayqueue.OutcomeRetry, delayqueue.OutcomeConflict, delayqueue.OutcomeReturned,
		delayqueue.OutcomeDead, delayqueue.OutcomeExpired, delayqueue.OutcomeLate,
	} {
		expect(`perkey_queue_events_total{event=%q,queue="ship"}`, string(outcome), func() { queues.OnSettled(ctx, delayqueue.Settled{Queue: "ship", Outcome: outcome}) })
	}
	requests, records := recorder.Requests(nil), recorder.Idempotency(nil)
	for _, kind := range []httplock.OutcomeKind{
		httplock.OutcomeRan, httplock.OutcomePassed, httplock.OutcomePanicked, httplock.OutcomeLost, httplock.OutcomeConflict,
		httplock.OutcomeParked, httplock.OutcomeDuplicate, httplock.OutcomeShed, httplock.OutcomeCancelled, httplock.OutcomeDeadline,
		httplock.OutcomeUnavailable, httplock.OutcomeRefused, httplock.OutcomeError,
	} {
		expect(`perkey_http_requests_total{outcome=%q,route="POST /pay"}`, string(kind), func() { requests.OnOutcome(ctx, httplock.Outcome{Name: "POST /pay", Kind: kind}) })
	}
	for _, kind := range []idempotency.EventKind{
		idempotency.EventBegun, idempotency.EventStored, idempotency.EventParked, idempotency.EventReplayed, idempotency.EventInProgress,
		idempotency.EventMismatch, idempotency.EventStaleFence, idempotency.EventForgotten, idempotency.EventError,
	} {
		expect(`perkey_idempotency_total{event=%q}`, string(kind), func() { records.OnEvent(ctx, idempotency.Event{Kind: kind}) })
	}
	for _, kind := range []string{"done", "failed", "lost", "deferred", "too_old", "no_key", "expired", "skipped"} {
		expect(`perkey_tasks_total{outcome=%q,type="mail"}`, kind, func() { recorder.CountTask("mail", kind) })
	}
	hash := strings.Repeat("0123456789abcdef", 4)
	for _, result := range []string{"done", "unchanged", "refused"} {
		expect(`perkey_config_reloads_total{result=%q}`, result, func() { recorder.CountReload(result, 3, hash) })
	}
	want = append(want, "perkey_config_refused 1\n", `perkey_config_info{hash="0123456789ab",version="3"} 1`+"\n")
	expect(`perkey_queue_events_total{event=%q,queue="ship"}`, "redelivered", func() { queues.OnReaped(ctx, delayqueue.Reaped{Queue: "ship", Redelivered: 1}) })
	expect(`perkey_queue_events_total{event=%q,queue="ship"}`, "overdue", func() { queues.OnReaped(ctx, delayqueue.Reaped{Queue: "ship", Expired: 1}) })
	text := scrape(t, lockprom.New(recorder))
	for _, line := range want {
		assert.Contains(t, text, line)
	}
}

func TestCollector_BucketsCountAllThatIsShorter(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	locks := recorder.Locks(core.NopObserver{})
	for _, held := range []time.Duration{time.Second, 2 * time.Second, time.Hour} {
		locks.OnReleased(t.Context(), core.Released{Name: "pay", Key: "k", Held: held})
	}
	text := scrape(t, lockprom.New(recorder))
	for _, line := range []string{`_bucket{name="pay",le="0.5"} 0`, `_bucket{name="pay",le="1"} 1`, `_bucket{name="pay",le="5"} 2`, `_bucket{name="pay",le="300"} 2`, `_bucket{name="pay",le="+Inf"} 3`, `_count{name="pay"} 3`, `_sum{name="pay"} 3603`} {
		assert.Contains(t, text, "perkey_lock_hold_seconds"+line+"\n")
	}
}

// total is the sum of a family's values; of a histogram's, how many there are.
func total(family *dto.MetricFamily) (sum float64) {
	for _, m := range family.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

func TestCollector_AnswersWithoutRedis(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, answersWithoutRedis)
}

func answersWithoutRedis(t *testing.T, env *redistest.Env) {
	queue := testbed.NewQueue(t, env.Client(t), "ship")
	collector := lockprom.New(ops.NewRecorder(), queue)
	assert.Contains(t, scrape(t, collector), `perkey_queue_up{queue="ship"} 1`)
	env.FallSilent()
	began := time.Now()
	text := scrape(t, collector)
	assert.LessOrEqual(t, time.Since(began), 2*time.Second)
	assert.Contains(t, text, `perkey_queue_up{queue="ship"} 0`)
	assert.NotContains(t, text, "perkey_queue_messages{")
	assert.Contains(t, text, "perkey_renewals_total 0")
}

func TestMain(m *testing.M) { redistest.Main(m) }
