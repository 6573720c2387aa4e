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
	busy(recorder, 10_000, 1000, 1000)
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

// total is the sum of a family's values; of a histogram's, how many there are.
func total(family *dto.MetricFamily) (sum float64) {
	for _, m := range family.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

func TestCollector_AnswersWithoutRedis(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		queue := testbed.NewQueue(t, env.Client(t), "ship", delayqueue.WithPrefix(env.Prefix))
		testbed.Enqueue(t, queue, delayqueue.Job{})
		own, fleet := lockprom.New(ops.NewRecorder(), queue), lockprom.NewFleet(env.Client(t), env.Prefix)
		for _, collector := range []prometheus.Collector{own, fleet} {
			assert.Contains(t, scrape(t, collector), `perkey_queue_up{queue="ship"} 1`)
		}
		env.FallSilent()
		for _, collector := range []prometheus.Collector{own, fleet} {
			began := time.Now()
			text := scrape(t, collector)
			assert.LessOrEqual(t, time.Since(began), 2*time.Second)
			assert.Contains(t, text, `perkey_queue_up{queue="ship"} 0`)
			assert.NotContains(t, text, "perkey_queue_messages{")
			if collector == own {
				assert.Contains(t, text, "perkey_renewals_total 0")
				continue
			}
			assert.Contains(t, text, "perkey_fleet_up 0\n")
			assert.NotContains(t, text, "perkey_fleet_processes ")
		}
	})
}

func TestMain(m *testing.M) { redistest.Main(m) }
