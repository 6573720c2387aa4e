package lockprom

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/ops"
)

// maxFleetQueues bounds the time series.
const maxFleetQueues = 100

// FleetCollector is a prometheus.Collector of what Redis says of all queues under a
// prefix, and of what processes with an [ops.Beacon] hold, wait for and work on. It is
// for a process that is not one of the services, such as perkey exporter. It has no
// counters of calls, which need a [Collector] in each process: their sum over processes
// falls when one ends, which Prometheus would read as a restart of all. It is safe for
// concurrent use.
type FleetCollector struct {
	rdb    redis.UniversalClient
	prefix string

	mu    sync.Mutex
	known map[string]*delayqueue.Queue // nil: one that cannot be opened
}

var _ prometheus.Collector = (*FleetCollector)(nil)

// NewFleet returns a FleetCollector of a prefix, the empty one being the default. Each scrape finds the queues, the
// first 100 by their names, asks each for [delayqueue.Queue.Stats], and calls [ops.ReadFleet]; it waits for 2 s at
// most. While Redis does not answer, queues that were found before have perkey_queue_up 0. The caller closes rdb.
func NewFleet(rdb redis.UniversalClient, prefix string) *FleetCollector {
	return &FleetCollector{rdb: rdb, prefix: cmp.Or(prefix, ident.DefaultPrefix)}
}

// Describe implements [prometheus.Collector].
func (c *FleetCollector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range slices.Concat(queueTable, fleetTable) {
		to <- m.desc
	}
}

// Collect implements [prometheus.Collector].
func (c *FleetCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	queues := c.discover(ctx)
	ctx, cancel = context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()

	fleet, err := answer(ctx, func() (ops.Fleet, error) { return ops.ReadFleet(ctx, c.rdb, c.prefix) })
	to <- fleetUp.of(oneIf(err == nil))
	workers := map[string]ops.QueueWorkers{}
	if err == nil {
		collectFleet(to, fleet)
		for _, w := range fleet.Queues() {
			workers[w.Queue] = w
		}
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	for name, q := range queues {
		if err == nil {
			to <- fleetWorkers.of(float64(workers[name].Workers), name)
			to <- fleetSlots.of(float64(workers[name].Slots), name)
		}
		if q == nil {
			to <- queueUp.of(0, name)
			continue
		}
		asking.Go(func() {
			if stats, ok := collectQueue(ctx, to, q); ok && err == nil {
				to <- fleetNoWorker.of(oneIf(fleet.NoWorker(name, stats)), name)
			}
		})
	}
}

func collectFleet(to chan<- prometheus.Metric, f ops.Fleet) {
	held, waiting, refused, silent := 0, 0, 0, 0
	for _, p := range f.Processes {
		held, waiting = held+p.Local.Held, waiting+p.Local.Waiting
		if p.Snapshot.Config != nil && p.Snapshot.Config.Refused {
			refused++
		}
		if p.Age > p.SilentAfter() {
			silent++
		}
	}
	to <- fleetProcesses.of(float64(len(f.Processes) + f.More))
	to <- fleetSilent.of(float64(silent))
	versions := f.Versions()
	delete(versions, "") // not known
	to <- fleetVersions.of(float64(len(versions)))
	to <- fleetRefused.of(float64(refused))
	to <- fleetHeld.of(float64(held))
	to <- fleetWaiting.of(float64(waiting))
}

// discover returns the queues that there are, or those that there were if Redis does not say.
func (c *FleetCollector) discover(ctx context.Context) map[string]*delayqueue.Queue {
	c.mu.Lock()
	before := c.known
	c.mu.Unlock()
	found, err := answer(ctx, func() (map[string]*delayqueue.Queue, error) {
		infos, err := delayqueue.Queues(ctx, c.rdb, c.prefix)
		if err != nil {
			return nil, err
		}
		found := map[string]*delayqueue.Queue{}
		for _, info := range infos[:min(len(infos), maxFleetQueues)] {
			if found[info.Name] = before[info.Name]; found[info.Name] == nil && info.Err == nil {
				q, err := delayqueue.Open(ctx, c.rdb, info.Name, delayqueue.WithPrefix(c.prefix))
				if err != nil {
					continue // it is tried again
				}
				found[info.Name] = q
			}
		}
		return found, nil
	})
	if err != nil {
		return before
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = found
	return found
}
