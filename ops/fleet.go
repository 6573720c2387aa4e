package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/nilcheck"
	"github.com/perkey-go/perkey/internal/unixms"
)

var fleetScript = luascript.Load(scripts, "fleet")

// MaxProcesses is how many processes ReadFleet reads, at most.
const MaxProcesses = 2000

const (
	entriesAtOnce = 32
	maxReadEntry  = 64 << 10     // bytes: what a later version may write
	wrongType     = "WRONGTYPE " // somebody else's
)

// Fleet is the processes of one prefix that have reported themselves. At is by the clock of Redis.
type Fleet struct {
	At time.Time
	// Processes are in the order of their ids.
	Processes []Process
	// Damaged is how many reports could not be read. More is how many there are beyond the latest
	// MaxProcesses.
	Damaged, More int
}

// Process is what a process reported of itself. A field that an older version does not report is
// empty: not known.
type Process struct {
	// ID is the id of its first Locker, and Lockers has the ids of all, as in [core.Participant].
	ID      string
	Lockers []string
	// Host and PID are the process's. Service is from WithService, or else the path of the main
	// package.
	Host    string
	PID     int
	Service string
	// Version is the version of perkey, and Go that of Go, with which the program was built.
	Version, Go string
	// Started is when its Beacon was started, by its own clock.
	Started time.Time
	// Age is how long ago it reported this, by the clock of Redis. TTL is the age at which the
	// report expires.
	Age, TTL time.Duration
	// Snapshot is its Recorder's, and Local that of its Lockers together, with the 32 oldest of
	// each list. Entries of lists are left out if the report would be too long: Cut is how many
	// were.
	Snapshot Snapshot
	Local    core.Local
	// Workers are those that the Beacon was given. Nil: it reports no workers.
	Workers []delayqueue.Local
	Cut     int
}

// SilentAfter returns the Age from which the process counts as silent, since its next report is
// overdue: one and a half times its Beacon's interval, by default 15 s. A silent process has died,
// hangs, or cannot write to Redis. At its TTL the report expires.
func (p Process) SilentAfter() time.Duration { return p.TTL / 7 * 3 }

// ReadFleet reads the reports of the processes with a Beacon under prefix, the empty prefix being the default one. It
// scans nothing: it reads an index, and then 32 entries at a time of at most 64 KiB, which blocks for as many round
// trips, and no longer than ctx allows between two of them. Its error wraps [core.ErrUnavailable],
// [core.ErrInvalidOption], or the cause for which ctx ended.
func ReadFleet(ctx context.Context, rdb redis.UniversalClient, prefix string) (Fleet, error) {
	prefix = cmp.Or(prefix, ident.DefaultPrefix)
	switch {
	case nilcheck.IsNil(rdb):
		return Fleet{}, invalid("ReadFleet: the redis client is nil")
	case !ident.ValidPrefix(prefix):
		return Fleet{}, invalid("ReadFleet: the prefix %q", prefix)
	}
	call := fleetScript.Prepare(ctx, []string{indexKey(prefix)}, MaxProcesses)
	call.Send(ctx, rdb)
	reply, err := call.Slice()
	if err == nil && (len(reply) < 2 || len(reply)%2 != 0) {
		err = luascript.ErrReply
	}
	if err != nil {
		return Fleet{}, unavailable(ctx, "read the fleet", err)
	}
	now, _ := reply[0].(int64)
	all, _ := reply[1].(int64)
	f := Fleet{At: time.UnixMilli(now), More: max(0, int(all)-(len(reply)-2)/2)}
	for chunk := range slices.Chunk(reply[2:], 2*entriesAtOnce) {
		if err := f.read(ctx, rdb, prefix, now, chunk); err != nil {
			return Fleet{}, unavailable(ctx, "read the fleet", err)
		}
	}
	slices.SortFunc(f.Processes, func(a, b Process) int { return cmp.Compare(a.ID, b.ID) })
	return f, nil
}

// read reads some entries. One that is gone since is passed over.
func (f *Fleet) read(ctx context.Context, rdb redis.UniversalClient, prefix string, now int64, index []any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	pipe := rdb.Pipeline()
	cmds := make([]*redis.StringCmd, 0, len(index)/2)
	for i := 0; i < len(index); i += 2 {
		id, _ := index[i].(string)
		cmds = append(cmds, pipe.GetRange(ctx, entryKey(prefix, id), 0, maxReadEntry))
	}
	if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, wrongType) {
		return err
	}
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil && !redis.HasErrorPrefix(err, wrongType) {
			return err
		} else if err == nil && cmd.Val() == "" {
			continue
		}
		e, err := readEntry([]byte(cmd.Val()))
		id, _ := index[2*i].(string)
		gone, _ := strconv.ParseFloat(fmt.Sprint(index[2*i+1]), 64)
		if err != nil || e.ID != id {
			f.Damaged++
			continue
		}
		f.Processes = append(f.Processes, e.process(time.Duration(now-int64(gone)+e.TTL)*time.Millisecond))
	}
	return nil
}

func unavailable(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ops: %s: %w", op, context.Cause(ctx))
	}
	return fmt.Errorf("ops: %s: %w: %w", op, core.ErrUnavailable, err)
}

// process is the entry, as its reader gets it.
func (e *entry) process(age time.Duration) Process {
	p := Process{
		ID: e.ID, Lockers: e.Lockers, Host: e.Host, PID: e.PID, Service: e.Service, Version: e.Version, Go: e.Go, Started: unixms.Time(e.Started),
		Age: max(age, 0), TTL: time.Duration(e.TTL) * time.Millisecond, Cut: e.Cut,
		Local: e.local(),
		Snapshot: Snapshot{
			Since: unixms.Time(e.Since), At: unixms.Time(e.At),
			Unclaimed:   e.Unclaimed,
			Renewals:    RenewalStats{e.Renewals.Leases, e.Renewals.Failed, e.histogram(e.Renewals.Took)},
			Idempotency: kinds[idempotency.EventKind](e.Idempotency),
			Conflicts:   hotKeys(e.Conflicts), Waits: hotKeys(e.HotWaits), Holds: hotKeys(e.HotHolds),
		},
	}
	s := &p.Snapshot
	for _, l := range e.Locks {
		s.Locks = append(s.Locks, LockStats{
			Name: string(l.Name), Calls: kinds[core.OutcomeKind](l.Calls), Held: l.Held, Waiting: l.Waiting, Wait: e.histogram(l.Wait),
			Hold: e.histogram(l.Hold), Lost: kinds[core.LossKind](l.Lost), Unreleased: l.Unreleased,
		})
	}
	for _, q := range e.Queues {
		s.Queues = append(s.Queues, QueueStats{
			Queue: string(q.Queue), Enqueued: kinds[delayqueue.EnqueueKind](q.Enqueued), Settled: kinds[delayqueue.Outcome](q.Settled),
			Redelivered: q.Redelivered, Expired: q.Expired, Lag: e.histogram(q.Lag), KeyWait: e.histogram(q.KeyWait), Claim: e.histogram(q.Claim),
		})
	}
	for _, r := range e.Requests {
		s.Requests = append(s.Requests, RequestStats{string(r.Name), kinds[httplock.OutcomeKind](r.Outcomes)})
	}
	for _, t := range e.Tasks {
		s.Tasks = append(s.Tasks, TaskStats{string(t.Name), kinds[string](t.Outcomes)})
	}
	if c := e.Config; c != nil {
		s.Config = &ConfigStats{Version: c.Version, Hash: c.Hash, Refused: c.Refused, Reloads: kinds[string](c.Reloads)}
	}
	slices.SortFunc(s.Requests, func(a, b RequestStats) int { return cmp.Compare(a.Route, b.Route) })
	slices.SortFunc(s.Tasks, func(a, b TaskStats) int { return cmp.Compare(a.Type, b.Type) })
	slices.SortFunc(s.Locks, func(a, b LockStats) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Queues, func(a, b QueueStats) int { return cmp.Compare(a.Queue, b.Queue) })
	for _, w := range e.Warnings {
		s.Warnings = append(s.Warnings, WarningStats(w))
	}
	for _, event := range e.Events {
		s.Events = append(s.Events, event.event(e.ID))
	}
	if e.Workers != nil {
		p.Workers = []delayqueue.Local{}
	}
	for _, w := range e.Workers {
		p.Workers = append(p.Workers, delayqueue.Local{
			Queue: string(w.Queue), Service: w.Service, Partitions: w.Partitions, Slots: w.Slots, Running: w.Running, LastClaim: unixms.Time(w.Claimed), Paused: w.Paused, Stopped: w.Stopped,
		})
	}
	return p
}

func (e *entry) local() core.Local {
	local := core.Local{Held: e.Held, Waiting: e.Waiting}
	for _, l := range e.Leases {
		local.Leases = append(local.Leases, core.LocalLease{
			Key: string(l.Key), Name: string(l.Name), Mode: core.Mode(l.Mode), Fence: l.Fence, Held: microseconds(l.Held), TTL: microseconds(l.TTL),
			Remaining: microseconds(l.Remaining), Contended: l.Contended,
		})
	}
	for _, w := range e.Waits {
		local.Waits = append(local.Waits, core.LocalWait{
			Key: string(w.Key), Name: string(w.Name), ID: string(w.ID), Mode: core.Mode(w.Mode), Waited: microseconds(w.Waited),
		})
	}
	return local
}

func hotKeys(keys []wireHot) (all []HotKey) {
	for _, k := range keys {
		all = append(all, HotKey{string(k.Key), k.Weight, k.Error})
	}
	return all
}

func kinds[K ~string](counts map[string]int64) map[K]int64 {
	m := make(map[K]int64, len(counts))
	for kind, n := range counts {
		m[K(kind)] = n
	}
	return m
}

// histogram is a histogram with the bounds of the entry.
func (e *entry) histogram(w wireHistogram) Histogram {
	h := Histogram{Over: w.Over, Count: w.Over, Sum: microseconds(w.Sum)}
	for i, bound := range e.Bounds {
		b := Bucket{AtMost: microseconds(bound)}
		if i < len(w.Counts) {
			b.Count = w.Counts[i]
		}
		h.Buckets, h.Count = append(h.Buckets, b), h.Count+b.Count
	}
	return h
}
