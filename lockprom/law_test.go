package lockprom_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/lockprom"
	"github.com/perkey-go/perkey/ops"
)

// series is one of a counter: the metric, whose it is, and the outcome.
type series struct{ metric, of, outcome string }

// tally counts calls as they come back to those who made them.
type tally struct {
	mu   sync.Mutex
	made map[series]int64
}

func (l *tally) add(metric, of, outcome string) { l.addAll(metric, of, outcome, 1) }

func (l *tally) addAll(metric, of, outcome string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[series{metric, of, outcome}] += n
}

func (l *tally) all() map[series]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.made)
}

// outcomeLabels are the metrics that the law is about, and the labels that have the outcome.
var outcomeLabels = map[string]string{
	"perkey_lock_calls_total": "outcome", "perkey_lock_lost_total": "cause", "perkey_enqueue_total": "result", "perkey_queue_events_total": "event",
	"perkey_http_requests_total": "outcome", "perkey_idempotency_total": "event", "perkey_tasks_total": "outcome", "perkey_config_reloads_total": "result",
}

var (
	exposed = regexp.MustCompile(`(?m)^(perkey_\w+)\{(.*)\} (\d+)$`)
	labels  = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// exported are the series of the law, those that are zero too.
func exported(t *testing.T, c prometheus.Collector) map[series]int64 {
	t.Helper()
	all := map[series]int64{}
	for _, m := range exposed.FindAllStringSubmatch(scrape(t, c), -1) {
		outcome, ok := outcomeLabels[m[1]]
		if !ok {
			continue
		}
		s := series{metric: m[1]}
		for _, l := range labels.FindAllStringSubmatch(m[2], -1) {
			if l[1] == outcome {
				s.outcome = l[2]
			} else {
				s.of = l[2]
			}
		}
		n, err := strconv.ParseInt(m[3], 10, 64)
		require.NoError(t, err)
		all[s] = n
	}
	return all
}

// counted is the same of a Snapshot.
func counted(s ops.Snapshot) map[series]int64 {
	all := map[series]int64{}
	for _, l := range s.Locks {
		put(all, "perkey_lock_calls_total", l.Name, l.Calls)
		put(all, "perkey_lock_lost_total", l.Name, l.Lost)
	}
	for _, q := range s.Queues {
		put(all, "perkey_enqueue_total", q.Queue, q.Enqueued)
		put(all, "perkey_queue_events_total", q.Queue, q.Settled)
		put(all, "perkey_queue_events_total", q.Queue, map[string]int64{"redelivered": q.Redelivered, "overdue": q.Expired})
	}
	for _, r := range s.Requests {
		put(all, "perkey_http_requests_total", r.Route, r.Outcomes)
	}
	for _, t := range s.Tasks {
		put(all, "perkey_tasks_total", t.Type, t.Outcomes)
	}
	put(all, "perkey_idempotency_total", "", s.Idempotency)
	if s.Config != nil {
		put(all, "perkey_config_reloads_total", "", s.Config.Reloads)
	}
	return all
}

func put[K ~string](all map[series]int64, metric, of string, counts map[K]int64) {
	for outcome, n := range counts {
		all[series{metric, of, string(outcome)}] = n
	}
}

// broken says what of the law does not hold: each call that was made is counted once, as what it came to, and
// nothing else is.
func broken(made, counted map[series]int64) (why []string) {
	for s, n := range made {
		if counted[s] != n {
			why = append(why, fmt.Sprintf("%v: %d were made, and %d are counted", s, n, counted[s]))
		}
	}
	for s, n := range counted {
		if n != 0 && made[s] == 0 {
			why = append(why, fmt.Sprintf("%v: none was made, and %d are counted", s, n))
		}
	}
	slices.Sort(why)
	return why
}

// dropping is an exporter that leaves an outcome out.
type dropping struct {
	prometheus.Collector
	series
}

func (d dropping) Collect(to chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() {
		defer close(all)
		d.Collector.Collect(all)
	}()
	for m := range all {
		if !d.drops(m) {
			to <- m
		}
	}
}

func (d dropping) drops(m prometheus.Metric) bool {
	var text dto.Metric
	if m.Write(&text) != nil || !strings.Contains(m.Desc().String(), `"`+d.metric+`"`) {
		return false
	}
	return slices.ContainsFunc(text.GetLabel(), func(l *dto.LabelPair) bool {
		return l.GetName() == outcomeLabels[d.metric] && l.GetValue() == d.outcome
	})
}

// Each call for a key, of a queue, of a route, of an Idempotency-Key, of a task and of a configuration file that was
// made, for every reason for which one can end, is counted once, as the outcome that its caller got.
func TestLaw_EachCallIsCountedOnceAsWhatItCameTo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		c := &calls{T: t, env: env, rdb: env.Client(t), recorder: ops.NewRecorder(), tally: tally{made: map[series]int64{}}}
		c.forKeys()
		c.toQueues()
		c.ofRoutes()
		c.ofIdempotencyKeys()
		c.ofTasks()
		c.ofFiles()

		made := c.all()
		collector := lockprom.New(c.recorder)
		why := broken(made, exported(t, collector))
		for until := time.Now().Add(5 * time.Second); len(why) > 0 && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			why = broken(made, exported(t, collector)) // a message is settled after its handler
		}
		require.Empty(t, why)
		require.Empty(t, broken(made, counted(c.recorder.Snapshot())))

		reasons := map[series]bool{}
		for s := range exported(t, collector) {
			reasons[series{s.metric, "", s.outcome}] = true
		}
		for s := range made {
			delete(reasons, series{s.metric, "", s.outcome})
		}
		assert.Empty(t, reasons, "reasons for which no call ended")

		for s := range made {
			require.NotEmpty(t, broken(made, exported(t, dropping{collector, s})), "an exporter that drops %v", s)
		}
	})
}
