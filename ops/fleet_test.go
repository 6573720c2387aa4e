package ops_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/ops"
)

// putEntry writes an entry as a process of another version would.
func putEntry(t testing.TB, rdb redis.UniversalClient, prefix, id, entry string) {
	t.Helper()
	require.NoError(t, rdb.Set(t.Context(), prefix+":ops:{fleet}:process:"+id, entry, time.Minute).Err())
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	require.NoError(t, rdb.ZAdd(t.Context(), prefix+":ops:{fleet}:processes",
		redis.Z{Score: float64(now.Add(time.Minute).UnixMilli()), Member: id}).Err())
}

func TestReadFleet_OfSeveralVersions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		putEntry(t, rdb, env.Prefix, "a-old", `{"id":"a-old","ttl":60000}`)
		putEntry(t, rdb, env.Prefix, "c-new", `{"id":"c-new","ttl":60000,"version":"v9.0.0","shape":{"sides":[1,2]},"held":3,`+
			`"bounds":[1000,2000],"workers":[{"queue":"ship","slots":2,"colour":"red"}],`+
			`"locks":[{"name":"n","calls":{"acquired":5,"teleported":2},"hold":{"counts":[1,2],"over":3,"sum":7000,"skew":1}}]}`)
		recorder := ops.NewRecorder()
		startBeacon(t, rdb, recorder, newLocker(t, env, core.WithObserver(recorder.Locks(nil))))
		var f ops.Fleet
		redistest.Eventually(t, func() bool { f = readFleet(t, rdb, env.Prefix); return len(f.Processes) == 3 }, "three are seen")
		require.Zero(t, f.Damaged)
		byID := map[string]ops.Process{}
		for _, p := range f.Processes {
			byID[p.ID] = p
		}
		older, newer := byID["a-old"], byID["c-new"]
		assert.Empty(t, older.Version)
		assert.Nil(t, older.Snapshot.Config)
		assert.Nil(t, older.Workers, "it is not known which")
		assert.True(t, older.Started.IsZero())
		assert.Equal(t, 3, newer.Local.Held)
		assert.Equal(t, int64(2), lockStats(t, newer.Snapshot, "n").Calls["teleported"])
		assert.Equal(t, ops.Histogram{
			Buckets: []ops.Bucket{{AtMost: time.Millisecond, Count: 1}, {AtMost: 2 * time.Millisecond, Count: 2}}, Over: 3, Count: 6, Sum: 7 * time.Millisecond,
		}, lockStats(t, newer.Snapshot, "n").Hold)
		for _, p := range f.Processes {
			if p.ID != "a-old" && p.ID != "c-new" {
				assert.NotNil(t, p.Workers)
				assert.Equal(t, map[string]int{"": 1, "v9.0.0": 1, p.Version: 1}, f.Versions())
			}
		}
	})
}

func TestReadFleet_PassesOverDamagedEntries(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		for i, damaged := range []string{
			"junk", "{", "[]", "null", `"x"`, `{"id":7}`, `{"id":"d6","ttl":0}`, `{"id":"another","ttl":1000}`, `{"id":"d8","ttl":1000,"locks":{}}`,
			`{"id":"d9","ttl":1000,"x":"` + strings.Repeat("x", 70<<10) + `"}`, `{"id":"d10","ttl":1000,"leases":[{"key":["%"]}]}`, "\xff\x00",
		} {
			putEntry(t, rdb, env.Prefix, fmt.Sprintf("d%d", i), damaged)
		}
		putEntry(t, rdb, env.Prefix, "gone", `{"id":"gone","ttl":60000}`)
		require.NoError(t, rdb.Del(t.Context(), env.Prefix+":ops:{fleet}:process:gone").Err())
		putEntry(t, rdb, env.Prefix, "list", "")
		require.NoError(t, rdb.Del(t.Context(), env.Prefix+":ops:{fleet}:process:list").Err())
		require.NoError(t, rdb.LPush(t.Context(), env.Prefix+":ops:{fleet}:process:list", "x").Err())
		putEntry(t, rdb, env.Prefix, "good", `{"id":"good","ttl":60000}`)
		f := readFleet(t, rdb, env.Prefix)
		assert.Equal(t, 13, f.Damaged)
		require.Len(t, f.Processes, 1)
		assert.Equal(t, "good", f.Processes[0].ID)
		assert.Less(t, f.Processes[0].Age, 10*time.Second)
		assert.Empty(t, readFleet(t, rdb, env.Prefix+"x").Processes)
	})
}

func TestProcess_IsSilentOnceItMissedATime(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		now, err := rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		for id, age := range map[string]time.Duration{"told": 5 * time.Second, "missed": 16 * time.Second} {
			putEntry(t, rdb, env.Prefix, id, `{"id":"`+id+`","ttl":35000}`)
			require.NoError(t, rdb.ZAdd(t.Context(), env.Prefix+":ops:{fleet}:processes",
				redis.Z{Score: float64(now.Add(35*time.Second - age).UnixMilli()), Member: id}).Err())
		}
		recorder := ops.NewRecorder()
		startBeacon(t, rdb, recorder, newLocker(t, env), ops.WithInterval(20*time.Second))
		redistest.Eventually(t, func() bool { return len(readFleet(t, rdb, env.Prefix).Processes) == 3 }, "three are seen")
		for _, p := range readFleet(t, rdb, env.Prefix).Processes {
			switch p.ID {
			case "told", "missed":
				assert.Equal(t, 15*time.Second, p.SilentAfter(), "by default")
				assert.Equal(t, p.ID == "missed", p.Age > p.SilentAfter(), p.ID)
			default:
				assert.Equal(t, 30*time.Second, p.SilentAfter(), "its interval is 20 s")
			}
		}
	})
}

func TestReadFleet_IsBounded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		pipe := rdb.Pipeline()
		now := time.Now().Add(time.Hour).UnixMilli()
		for i := range ops.MaxProcesses + 7 {
			id := strconv.Itoa(i)
			pipe.Set(t.Context(), env.Prefix+":ops:{fleet}:process:"+id, `{"id":"`+id+`","ttl":1000}`, time.Minute)
			pipe.ZAdd(t.Context(), env.Prefix+":ops:{fleet}:processes", redis.Z{Score: float64(now + int64(i)), Member: id})
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		f := readFleet(t, rdb, env.Prefix)
		assert.Len(t, f.Processes, ops.MaxProcesses)
		assert.Equal(t, 7, f.More)
		for _, p := range f.Processes {
			assert.NotEqual(t, "6", p.ID, "of those that told first")
		}
	})
}

func histogram(counts ...int64) ops.Histogram {
	h := ops.Histogram{}
	for i, n := range counts {
		h.Buckets = append(h.Buckets, ops.Bucket{AtMost: time.Duration(i+1) * time.Second, Count: n})
		h.Count += n
	}
	return h
}

// twoProcesses are those of a fleet, which have much in common.
func twoProcesses(at time.Time) (a, b ops.Process) {
	a = ops.Process{
		ID: "a", Version: "v1.0.0", Age: 2 * time.Second,
		Snapshot: ops.Snapshot{
			Since: at.Add(-time.Hour), At: at,
			Locks: []ops.LockStats{{
				Name: "n", Calls: map[core.OutcomeKind]int64{core.OutcomeAcquired: 1}, Held: 1, Hold: histogram(1, 2),
				Lost: map[core.LossKind]int64{core.LossForced: 1},
			}},
			Renewals:  ops.RenewalStats{Leases: 3, Failed: 1, Took: histogram(3)},
			Queues:    []ops.QueueStats{{Queue: "ship", Settled: map[delayqueue.Outcome]int64{delayqueue.OutcomeDone: 1}}, {Queue: ops.Other}},
			Warnings:  []ops.WarningStats{{Source: "locks", Kind: "unreachable", Open: 1}},
			Conflicts: []ops.HotKey{{Key: "x", Weight: 5, Error: 1}, {Key: "y", Weight: 4}},
			Events:    []ops.Event{{Process: "a", At: at, Kind: "lost"}},

			Requests:    []ops.RequestStats{{Route: "POST /pay", Outcomes: map[httplock.OutcomeKind]int64{httplock.OutcomeRan: 1}}},
			Tasks:       []ops.TaskStats{{Type: "mail", Outcomes: map[string]int64{"done": 1}}},
			Idempotency: map[idempotency.EventKind]int64{idempotency.EventBegun: 1},
			Config:      &ops.ConfigStats{Version: 3, Hash: "abc"},
		},
		Local: core.Local{Leases: []core.LocalLease{{Key: "x", Held: 3 * time.Second, Remaining: time.Second}}},
		Workers: []delayqueue.Local{
			{Queue: "ship", Slots: 8, Running: 3, LastClaim: at.Add(-4 * time.Second)}, {Queue: "mail", Slots: 2, Stopped: true}, {Queue: "ship", Slots: 8, Paused: true},
		},
	}
	b = ops.Process{
		ID: "b", Age: time.Second,
		Snapshot: ops.Snapshot{
			Since: at.Add(-time.Minute), At: at.Add(time.Second),
			Locks: []ops.LockStats{
				{Name: "m"}, {Name: "n", Calls: map[core.OutcomeKind]int64{core.OutcomeAcquired: 2, core.OutcomeShed: 4}, Waiting: 2, Hold: histogram(1, 1, 1)},
			},
			Warnings:  []ops.WarningStats{{Source: "locks", Kind: "unreachable", Open: 1}},
			Conflicts: []ops.HotKey{{Key: "y", Weight: 4, Error: 2}},
			Events:    []ops.Event{{Process: "b", At: at.Add(time.Second), Kind: "shed"}},

			Requests:    []ops.RequestStats{{Route: "POST /pay", Outcomes: map[httplock.OutcomeKind]int64{httplock.OutcomeRan: 2, httplock.OutcomeShed: 4}}},
			Tasks:       []ops.TaskStats{{Type: "archive"}, {Type: "mail", Outcomes: map[string]int64{"done": 2}}},
			Idempotency: map[idempotency.EventKind]int64{idempotency.EventBegun: 2},
		},
		Local: core.Local{
			Leases: []core.LocalLease{{Key: "y", Held: 4500 * time.Millisecond}}, Waits: []core.LocalWait{{Key: "x", Waited: time.Second}},
		},
	}
	return a, b
}

func TestFleet_SumsUpItsProcesses(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_800_000_000_000)
	a, b := twoProcesses(at)
	f := ops.Fleet{Processes: []ops.Process{a, b}}
	s := f.Snapshot()
	assert.Equal(t, at.Add(-time.Hour), s.Since)
	assert.Equal(t, at.Add(time.Second), s.At)
	require.Len(t, s.Locks, 2)
	n := s.Locks[1]
	assert.Equal(t, map[core.OutcomeKind]int64{core.OutcomeAcquired: 3, core.OutcomeShed: 4}, n.Calls)
	assert.Equal(t, histogram(2, 3, 1), n.Hold)
	assert.Equal(t, int64(1), n.Held)
	assert.Equal(t, int64(2), n.Waiting)
	assert.Equal(t, map[core.LossKind]int64{core.LossForced: 1}, n.Lost)
	assert.Equal(t, ops.RenewalStats{Leases: 3, Failed: 1, Took: histogram(3)}, s.Renewals)
	assert.Equal(t, []ops.WarningStats{{Source: "locks", Kind: "unreachable", Open: 2}}, s.Warnings)
	assert.Equal(t, []ops.HotKey{{Key: "y", Weight: 8, Error: 2}, {Key: "x", Weight: 5, Error: 1}}, s.Conflicts)
	assert.Equal(t, "shed", s.Events[0].Kind)
	assert.Equal(t, []ops.RequestStats{{Route: "POST /pay", Outcomes: map[httplock.OutcomeKind]int64{httplock.OutcomeRan: 3, httplock.OutcomeShed: 4}}}, s.Requests)
	assert.Equal(t, []ops.TaskStats{{Type: "archive", Outcomes: map[string]int64{}}, {Type: "mail", Outcomes: map[string]int64{"done": 3}}}, s.Tasks)
	assert.Equal(t, map[idempotency.EventKind]int64{idempotency.EventBegun: 3}, s.Idempotency)
	assert.Nil(t, s.Config)
	assert.Equal(t, map[string]int{"abc": 1, "": 1}, f.Configs())
	assert.Equal(t, int64(1), a.Snapshot.Requests[0].Outcomes[httplock.OutcomeRan], "what was merged stays as it is")
	assert.Equal(t, int64(1), a.Snapshot.Locks[0].Calls[core.OutcomeAcquired], "what was merged stays as it is")
}

func TestFleet_ListsWhatItsProcessesHave(t *testing.T) {
	t.Parallel()
	a, b := twoProcesses(time.UnixMilli(1_800_000_000_000))
	f := ops.Fleet{Processes: []ops.Process{a, b}}
	leases := f.OldestLeases(10)
	require.Len(t, leases, 2)
	assert.Equal(t, [2]string{"b", "y"}, [2]string{leases[0].Process, leases[0].Key}, "4.5 s, and the other one 3, as they were told")
	assert.Equal(t, [2]time.Duration{4500 * time.Millisecond, time.Second}, [2]time.Duration{leases[0].Held, leases[0].Age}, "its age is not held time")
	assert.Equal(t, [2]time.Duration{time.Second, 2 * time.Second}, [2]time.Duration{leases[1].Remaining, leases[1].Age})
	assert.Len(t, f.OldestLeases(1), 1)
	assert.Empty(t, f.OldestLeases(-1))
	assert.Equal(t, [2]time.Duration{time.Second, time.Second}, [2]time.Duration{f.LongestWaits(1)[0].Waited, f.LongestWaits(1)[0].Age})
	assert.Equal(t, map[string]int{"v1.0.0": 1, "": 1}, f.Versions())
	assert.Equal(t, []ops.QueueWorkers{
		{Queue: "mail", Claimed: -1}, {Queue: "ship", Workers: 1, Slots: 8, Running: 3, Paused: 1, Claimed: 6 * time.Second},
	}, f.Queues())
}

func TestFleet_SeesThatNobodyWorks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	works := func(workers ...delayqueue.Local) ops.Fleet {
		for i := range workers {
			workers[i].Queue = "ship"
		}
		return ops.Fleet{Processes: []ops.Process{{Snapshot: ops.Snapshot{At: now}, Workers: workers}}}
	}
	late := delayqueue.Stats{Due: 1, SinceLastClaim: time.Minute}
	for name, c := range map[string]struct {
		fleet ops.Fleet
		stats delayqueue.Stats
		want  bool
	}{
		"nobody is there":          {ops.Fleet{}, late, true},
		"nothing is due":           {ops.Fleet{}, delayqueue.Stats{SinceLastClaim: time.Minute}, false},
		"one without a Beacon":     {ops.Fleet{}, delayqueue.Stats{Due: 1, SinceLastClaim: time.Second}, false},
		"the queue is paused":      {ops.Fleet{}, delayqueue.Stats{Due: 1, SinceLastClaim: time.Minute, Paused: true}, false},
		"one works":                {works(delayqueue.Local{LastClaim: now}), late, false},
		"one is paused":            {works(delayqueue.Local{LastClaim: now, Paused: true}), late, true},
		"one is stopped":           {works(delayqueue.Local{LastClaim: now, Stopped: true}), late, true},
		"one cannot reach Redis":   {works(delayqueue.Local{LastClaim: now.Add(-time.Minute)}), late, true},
		"one has never claimed":    {works(delayqueue.Local{}), late, true},
		"only a paused one claims": {works(delayqueue.Local{LastClaim: now, Paused: true}, delayqueue.Local{}), late, true},
		"one is on another queue":  {ops.Fleet{Processes: []ops.Process{{Workers: []delayqueue.Local{{Queue: "mail", LastClaim: now}}}}}, late, true},
		"older ones say not which": {ops.Fleet{Processes: []ops.Process{{}}}, delayqueue.Stats{Due: 1}, false},
	} {
		assert.Equal(t, c.want, c.fleet.NoWorker("ship", c.stats), name)
	}
}

// An entry that is read and told again is the same.
func TestReadFleet_LosesNothing(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	recorder := ops.NewRecorder()
	observer, queues := recorder.Locks(nil), recorder.Queues(nil)
	ctx, name := t.Context(), "\u2028<name>"
	observer.OnWaiting(ctx, core.Waiting{Key: "k", Name: name})
	observer.OnOutcome(ctx, core.Outcome{Kind: core.OutcomeAcquired, Leases: 2, Key: "k", Name: name, DidWait: true, Waited: time.Hour})
	observer.OnReleased(ctx, core.Released{Key: "k", Name: name, Held: 3 * time.Second, Err: core.ErrUnavailable})
	observer.OnLost(ctx, core.Lost{Key: "\xff", Name: name, Fence: 7, Held: time.Minute, Kind: core.LossForced, Cause: core.ErrLeaseLost})
	observer.OnRenewed(ctx, core.Renewed{Leases: 9, Latency: time.Second, Err: core.ErrUnavailable})
	observer.OnWarning(ctx, core.Warning{Kind: core.WarnEviction, Node: "n:1", Detail: "allkeys"})
	queues.OnEnqueued(ctx, delayqueue.Enqueued{Queue: "ship", Kind: delayqueue.EnqueueUnavailable, Key: "k", ID: "7", Took: time.Second, Err: core.ErrUnavailable})
	queues.OnStarted(ctx, delayqueue.Started{Queue: "ship", Message: delayqueue.Message{Key: "k"}, Lag: time.Second, KeyWait: time.Minute})
	queues.OnSettled(ctx, delayqueue.Settled{Queue: "ship", Outcome: delayqueue.OutcomeDead, Took: time.Second})
	queues.OnReaped(ctx, delayqueue.Reaped{Queue: "ship", Redelivered: 2, Expired: 3})
	for i, route := range []string{"POST /pay", "PUT /pay", "PUT /pay"} {
		recorder.Requests(nil).OnOutcome(ctx, httplock.Outcome{Kind: httplock.OutcomeParked, Name: route})
		recorder.CountTask([]string{"mail", "print", "print"}[i], "too_old")
	}
	recorder.Idempotency(nil).OnEvent(ctx, idempotency.Event{Kind: idempotency.EventBegun})
	recorder.CountReload("done", 2, "abc")
	recorder.CountReload("refused", 2, "abc")
	startBeacon(t, env.Client(t), recorder, newLocker(t, env), ops.WithInterval(time.Minute)) // and an entry lasts as long
	p := tells(t, env, func(ops.Process) bool { return true }, "it is told")
	want := recorder.Snapshot()
	is := p.Snapshot
	for i := range is.Events {
		assert.Equal(t, p.ID, is.Events[i].Process)
		is.Events[i].Process = ""
	}
	assert.Equal(t, "refused", is.Events[0].Kind)
	assert.JSONEq(t, text(t, want), text(t, is))
	all := readFleet(t, env.Client(t), env.Prefix)
	assert.Equal(t, map[string]int{"abc": 1}, all.Configs())
	merged := all.Snapshot()
	assert.Nil(t, merged.Config, "each process has its own")
	merged.Config = is.Config
	for i := range merged.Events {
		merged.Events[i].Process = ""
	}
	assert.JSONEq(t, text(t, want), text(t, merged), "all of one are that one")
}

// text is a snapshot without what may differ: times, and kinds that there was none of.
func text(t testing.TB, s ops.Snapshot) string {
	t.Helper()
	s.Since, s.At = time.Time{}, time.Time{}
	for i := range s.Events {
		s.Events[i].At = time.Time{}
	}
	for _, keys := range [][]ops.HotKey{s.Waits, s.Conflicts, s.Holds} {
		for i := range keys {
			keys[i].Weight = 0 // is halved meanwhile
		}
	}
	for _, l := range s.Locks {
		dropZeros(l.Calls)
		dropZeros(l.Lost)
	}
	for _, r := range s.Requests {
		dropZeros(r.Outcomes)
	}
	for _, task := range s.Tasks {
		dropZeros(task.Outcomes)
	}
	dropZeros(s.Idempotency)
	if s.Config != nil {
		dropZeros(s.Config.Reloads)
	}
	for _, q := range s.Queues {
		dropZeros(q.Enqueued)
		dropZeros(q.Settled)
	}
	b, err := json.Marshal(s)
	require.NoError(t, err)
	return string(b)
}

func dropZeros[K comparable](m map[K]int64) {
	for k, n := range m {
		if n == 0 {
			delete(m, k)
		}
	}
}
