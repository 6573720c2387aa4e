package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// process KEY [QUEUE]: another process, with a beacon, holds a key, and works a queue.
func tellingProcess(ts *testscript.TestScript, _ bool, args []string) {
	b := of(ts)
	recorder := ops.NewRecorder()
	locker, err := core.New(b.rdb, core.WithPrefix(b.prefix), core.WithObserver(recorder.Locks(nil)))
	ts.Check(err)
	b.lockers = append(b.lockers, locker)
	key := unquote(ts, args[0])
	_, err = locker.TryAcquire(context.Background(), key, core.Named("pay", "req-17"))
	ts.Check(err)
	_, err = locker.TryAcquire(context.Background(), key, core.Named("refund", "req-18"))
	if err == nil {
		ts.Fatalf("%q is not held", key)
	}
	opts := []ops.BeaconOption{ops.WithInterval(100 * time.Millisecond), ops.WithService("example.com/shop")}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancels = append(b.cancels, cancel)
	if len(args) > 1 {
		w, err := delayqueue.NewWorker(b.queue(ts, args[1]), locker, func(context.Context, delayqueue.Message) error { return nil },
			delayqueue.WithLogger(slog.New(slog.DiscardHandler)), delayqueue.WithConcurrency(3))
		ts.Check(err)
		ts.Check(w.Start())
		opts = append(opts, ops.WithWorkers(w))
		b.calls.Go(func() {
			<-ctx.Done()
			_ = w.Stop(context.Background())
		})
	}
	beacon, err := ops.StartBeacon(b.rdb, recorder, locker, opts...)
	ts.Check(err)
	b.calls.Go(func() {
		<-ctx.Done()
		_ = beacon.Close()
	})
	for { // until it has told
		f, err := ops.ReadFleet(ctx, b.rdb, b.prefix)
		ts.Check(err)
		for _, p := range f.Processes {
			if p.ID == locker.ID() && (len(args) == 1 || !p.Workers[0].LastClaim.IsZero()) {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// busy KEY: the latest process takes and releases a key, over and over.
func busy(ts *testscript.TestScript, _ bool, args []string) {
	b := of(ts)
	locker := b.lockers[len(b.lockers)-1]
	ctx, cancel := context.WithCancel(context.Background())
	b.cancels = append(b.cancels, cancel)
	b.calls.Go(func() {
		for ctx.Err() == nil {
			_ = locker.Do(ctx, args[0], func(context.Context) error { return nil }, core.Named("pay", "req-19"))
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
}

// Whatever the keys are, a table stays one: a line each, aligned, and no more than a few.
func TestFleet_ShowsTheFirstKeysOfEachKind(t *testing.T) {
	t.Parallel()
	hostile := "\x1b[2J\n" + strings.Repeat("鍵", 100)
	p := ops.Process{ID: "host/7/abcd"}
	for i := range 9 {
		key := "order:" + string(rune('0'+i))
		if i == 1 {
			key = hostile
		}
		p.Snapshot.Conflicts = append(p.Snapshot.Conflicts, ops.HotKey{Key: key, Weight: 100 / float64(1+300*i)})
		p.Local.Leases = append(p.Local.Leases, core.LocalLease{Key: key, Held: time.Duration(90-i) * time.Second, Contended: i == 0})
		p.Local.Waits = append(p.Local.Waits, core.LocalWait{Key: key, Name: "pay", Waited: time.Duration(9-i) * time.Second})
	}
	p.Snapshot.Waits = []ops.HotKey{{Key: "order:0", Weight: 2.5}}
	f := &fleetState{Fleet: ops.Fleet{Processes: []ops.Process{p}}, queues: []queueState{{QueueWorkers: ops.QueueWorkers{Queue: "ship"}, err: errors.New("another Redis")}}}
	var out bytes.Buffer
	(&tool{out: &out}).printFleet(f)
	assert.Equal(t, printable(out.String()), out.String())
	tables := strings.Split(strings.ReplaceAll(out.String(), quote(hostile), "KEY"), "\n\n")
	require.Len(t, tables, 5)
	assert.Contains(t, tables[1], "not known here")
	assert.Equal(t, []string{
		"CONFLICTS  WAITED  HOT KEY\n      100    2.5s  order:0\n       <1       -  KEY\n       <1       -  order:2\n       <1       -  order:3\n       <1       -  order:4",
		" HELD  FOR  PROCESS  OLDEST LEASE\n1m30s  -    host:7   order:0  contended\n1m29s  -    host:7   KEY\n1m28s  -    host:7   order:2\n1m27s  -    host:7   order:3\n1m26s  -    host:7   order:4",
		"WAITED  FOR  PROCESS  LONGEST WAIT\n  9.0s  pay  host:7   order:0\n  8.0s  pay  host:7   KEY\n  7.0s  pay  host:7   order:2\n  6.0s  pay  host:7   order:3\n  5.0s  pay  host:7   order:4\n",
	}, tables[2:])
	j := fleetOf(f)
	assert.Len(t, j.Conflicts, 9)
	assert.Equal(t, waitJSON{keyJSON: keyJSON{Key: "order:8"}, Process: p.ID, Name: "pay", Waited: 1}, j.Longest[8])
}

// tells ID VERSION AHEAD: a process tells of itself, by a clock that is ahead. It stays for a minute.
func tells(ts *testscript.TestScript, _ bool, args []string) {
	b, ctx := of(ts), context.Background()
	ahead, err := time.ParseDuration(args[2])
	ts.Check(err)
	now, err := b.rdb.Time(ctx).Result()
	ts.Check(err)
	id, fleet := unquote(ts, args[0]), b.prefix+":ops:{fleet}:process"
	entry, err := json.Marshal(map[string]any{
		"id": id, "ttl": time.Minute.Milliseconds(), "at": now.Add(ahead).UnixMilli(), "host": id, "pid": 7, "version": unquote(ts, args[1]),
	})
	ts.Check(err)
	ts.Check(b.rdb.Set(ctx, fleet+":"+id, entry, time.Minute).Err())
	ts.Check(b.rdb.ZAdd(ctx, fleet+"es", redis.Z{Score: float64(now.Add(time.Minute).UnixMilli()), Member: id}).Err())
}
