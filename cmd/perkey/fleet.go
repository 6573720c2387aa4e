package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

func (t *tool) fleetCommand() *cli.Command {
	return &cli.Command{
		Name: "fleet", Usage: "the processes with a beacon, who works which queue, hot keys, old leases and long waits", ArgsUsage: " ",
		Description: "The keys with most conflicts, the oldest leases and the longest waits are the first 5 of each; -o json has up to 100.\n" +
			"It reads the reports of processes, one every 10 s: it can miss keys that are held for less.",
		Action: t.fleet,
	}
}

// unknown is shown for what an older process does not tell.
const unknown = "unknown"

// fleetState is the fleet and its queues, as they are shown.
type fleetState struct {
	ops.Fleet
	queues []queueState
}

// queueState is a queue, and who works it.
type queueState struct {
	ops.QueueWorkers
	stats    delayqueue.Stats
	err      error // why stats are not known
	noWorker bool
}

type processJSON struct {
	ID      string       `json:"id"`
	Host    string       `json:"host"`
	PID     int          `json:"pid"`
	Service string       `json:"service,omitempty"`
	Version string       `json:"version,omitempty"`
	Go      string       `json:"go,omitempty"`
	Started *time.Time   `json:"started,omitempty"`
	Config  *configJSON  `json:"config,omitempty"`
	Age     float64      `json:"age_s"`
	Silent  bool         `json:"silent,omitempty"`
	Held    int          `json:"held"`
	Waiting int          `json:"waiting"`
	Workers []workerJSON `json:"workers"` // null: not known
	Cut     int          `json:"cut,omitempty"`
}

type configJSON struct {
	Version int    `json:"version"`
	Hash    string `json:"hash"`
	Refused bool   `json:"latest_refused,omitempty"`
}

type workerJSON struct {
	Queue     string     `json:"queue"`
	Slots     int        `json:"slots"`
	Running   int        `json:"running"`
	LastClaim *time.Time `json:"last_claim,omitempty"`
	Paused    bool       `json:"paused,omitempty"`
	Stopped   bool       `json:"stopped,omitempty"`
}

type fleetQueueJSON struct {
	Queue    string   `json:"queue"`
	Workers  int      `json:"workers"`
	Slots    int      `json:"slots"`
	Running  int      `json:"running"`
	Paused   int      `json:"paused_workers,omitempty"`
	Claimed  *float64 `json:"claimed_ago_s,omitempty"`
	Due      int64    `json:"due"`
	Lateness float64  `json:"lateness_s"`
	NoWorker bool     `json:"no_worker"`
	Error    string   `json:"error,omitempty"`
}

type fleetJSON struct {
	At        time.Time        `json:"at"`
	Processes []processJSON    `json:"processes"`
	Versions  map[string]int   `json:"versions"`
	Queues    []fleetQueueJSON `json:"queues"`
	Damaged   int              `json:"damaged,omitempty"`
	More      int              `json:"more,omitempty"`
	keysJSON
}

func (t *tool) fleet(ctx context.Context, c *cli.Command) error {
	if _, err := args(c, 0, 0); err != nil {
		return err
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	f, err := t.readFleet(ctx)
	if err != nil {
		return err
	}
	if isJSON(c) {
		return t.json(fleetOf(f))
	}
	t.printFleet(f)
	return nil
}

func (t *tool) printFleet(f *fleetState) {
	if len(f.Processes) == 0 {
		t.printf("no process with a beacon (ops.StartBeacon) under the prefix %s\n", quote(t.prefix))
	} else {
		t.table(row{"PROCESS", "SERVICE", "VERSION", "HELD", "WAITING", "SLOTS", "REPORTED", ""}, processRows(f), 3, 4, 5)
	}
	if versions := f.Versions(); len(versions) > 1 {
		t.printf("\nversions differ: %s\n", countsText(versions, versionLen))
	}
	configs := f.Configs()
	delete(configs, "") // it has none, or does not tell
	if len(configs) > 1 {
		t.printf("\nconfigurations differ: %s\n", countsText(configs, configLen))
	}
	if n := refused(f); n > 0 {
		t.printf("\n%s refused the latest configuration\n", plural(n, "process has", "processes have"))
	}
	if f.More > 0 {
		t.printf("\n%s not shown\n", plural(int64(f.More), "more process is", "more processes are"))
	}
	if f.Damaged > 0 {
		t.printf("\n%s cannot be read\n", plural(int64(f.Damaged), "entry", "entries"))
	}
	t.list(queueHead, queueRows(f), 1, 2, 3, 4)
	t.list(hotHead, hotRows(f.Snapshot()), 0, 1)
	t.list(leaseHead, leaseRows(f.Fleet), 0)
	t.list(waitHead, waitRows(f.Fleet), 0)
}

// list is another table, if it has rows.
func (t *tool) list(head row, rows []row, right ...int) {
	if len(rows) > 0 {
		t.printf("\n")
		t.table(head, rows, right...)
	}
}

// maxQueues is how many queues are asked for their state at a time.
const maxQueues = 50

// readFleet reads the fleet, and the state of its queues.
func (t *tool) readFleet(ctx context.Context) (*fleetState, error) {
	fleet, err := ops.ReadFleet(ctx, t.rdb, t.prefix)
	if err != nil {
		return nil, err
	}
	f := &fleetState{Fleet: fleet}
	infos, err := delayqueue.Queues(ctx, t.rdb, t.prefix)
	if err != nil {
		return nil, err
	}
	workers := map[string]ops.QueueWorkers{}
	for _, w := range fleet.Queues() {
		workers[w.Queue] = w
	}
	for _, info := range infos {
		if _, ok := workers[info.Name]; !ok {
			workers[info.Name] = ops.QueueWorkers{Queue: info.Name, Claimed: -1}
		}
	}
	names := slices.Sorted(maps.Keys(workers))
	for _, name := range names[:min(len(names), maxQueues)] {
		q := queueState{QueueWorkers: workers[name]}
		if q.stats, q.err = t.stats(ctx, name); q.err == nil {
			q.noWorker = fleet.NoWorker(name, q.stats)
		}
		f.queues = append(f.queues, q)
	}
	return f, ctx.Err()
}

// stats asks a queue of this Redis; workers can be on queues of another one.
func (t *tool) stats(ctx context.Context, name string) (delayqueue.Stats, error) {
	q, err := delayqueue.Open(ctx, t.rdb, name, delayqueue.WithPrefix(t.prefix))
	if err != nil {
		return delayqueue.Stats{}, err
	}
	return q.Stats(ctx)
}

func fleetOf(f *fleetState) fleetJSON {
	j := fleetJSON{
		At: f.At.UTC(), Processes: []processJSON{}, Versions: map[string]int{}, Queues: []fleetQueueJSON{}, Damaged: f.Damaged, More: f.More,
		keysJSON: keysOf(f.Fleet),
	}
	for version, n := range f.Versions() {
		j.Versions[known(version)] = n
	}
	for _, p := range f.Processes {
		one := processJSON{
			ID: p.ID, Host: p.Host, PID: p.PID, Service: p.Service, Version: p.Version, Go: p.Go, Started: timeJSON(p.Started), Age: p.Age.Seconds(),
			Silent: p.Age > p.SilentAfter(), Held: p.Local.Held, Waiting: p.Local.Waiting, Cut: p.Cut,
		}
		if c := p.Snapshot.Config; c != nil {
			one.Config = &configJSON{c.Version, c.Hash, c.Refused}
		}
		if p.Workers != nil {
			one.Workers = []workerJSON{}
		}
		for _, w := range p.Workers {
			one.Workers = append(one.Workers, workerJSON{w.Queue, w.Slots, w.Running, timeJSON(w.LastClaim), w.Paused, w.Stopped})
		}
		j.Processes = append(j.Processes, one)
	}
	for _, q := range f.queues {
		one := fleetQueueJSON{
			Queue: q.Queue, Workers: q.Workers, Slots: q.Slots, Running: q.Running, Paused: q.Paused, Due: q.stats.Due,
			Lateness: q.stats.Lateness.Seconds(), NoWorker: q.noWorker,
		}
		if q.Claimed >= 0 {
			ago := q.Claimed.Seconds()
			one.Claimed = &ago
		}
		if q.err != nil {
			one.Error = q.err.Error()
		}
		j.Queues = append(j.Queues, one)
	}
	return j
}

// known is what a process told, or that it did not.
func known(s string) string {
	if s == "" {
		return unknown
	}
	return s
}

// processName is a process as people know it, HOST:PID, of a Locker's id.
func processName(id string) string {
	parts := strings.Split(id, "/")
	if len(parts) == 3 && parts[0] != "" {
		return quote(parts[0] + ":" + parts[1])
	}
	return quote(id)
}

func processRows(f *fleetState) (rows []row) {
	for _, p := range f.Processes {
		slots := unknown
		if p.Workers != nil {
			n, running := 0, 0
			for _, w := range p.Workers {
				n, running = n+w.Slots, running+w.Running
			}
			slots = fmt.Sprintf("%d/%d", running, n)
		}
		silent := ""
		if p.Age > p.SilentAfter() {
			silent = "silent"
		}
		rows = append(rows, row{
			processName(p.ID), quote(known(lastPart(p.Service))), quote(known(p.Version)), fmt.Sprint(p.Local.Held), fmt.Sprint(p.Local.Waiting),
			slots, span(p.Age) + " ago", silent,
		})
	}
	return rows
}

// lastPart is the end of a path.
func lastPart(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

var queueHead = row{"QUEUE", "DUE", "LATE", "SLOTS", "WORKERS", ""}

func queueRows(f *fleetState) (rows []row) {
	for _, q := range f.queues {
		due, late, what := fmt.Sprint(q.stats.Due), lateText(q.stats), ""
		switch {
		case q.err != nil:
			due, late, what = "-", "-", "not known here"
		case q.noWorker:
			what = "due work, and no worker seen"
		case q.stats.Paused:
			what = pausedText(q.stats)
		case q.Paused > 0:
			what = plural(int64(q.Paused), "worker is paused", "workers are paused")
		}
		rows = append(rows, row{quote(q.Queue), due, late, fmt.Sprintf("%d/%d", q.Running, q.Slots), fmt.Sprint(q.Workers), what})
	}
	return rows
}

const versionLen, configLen = 40, 12 // of what is shown of them

// countsText is how many processes have each version, or configuration.
func countsText(counts map[string]int, most int) string {
	var all []string
	for _, one := range slices.Sorted(maps.Keys(counts)) {
		name := known(one)
		all = append(all, fmt.Sprintf("%d × %s", counts[one], quote(name[:min(len(name), most)])))
	}
	return strings.Join(all, ", ")
}

// refused is how many processes have refused the latest configuration, and go on with the one before it.
func refused(f *fleetState) (n int64) {
	for _, p := range f.Processes {
		if c := p.Snapshot.Config; c != nil && c.Refused {
			n++
		}
	}
	return n
}
