package delayqueue_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// workerVar holds a workerConfig when this test binary is to be a worker.
const workerVar = "PERKEY_DELAYQUEUE_WORKER"

type workerConfig struct {
	Addr, Prefix string
	Lease        time.Duration // of claims and of locks
	Mode         string        // "hang", "die" or "order"
	Concurrency  int           // zero: 4
	MaxAttempts  int           // zero: 5
}

// workerProcess is a worker in a process of its own. It runs until it is killed.
func workerProcess(config string) {
	var c workerConfig
	must(json.Unmarshal([]byte(config), &c))
	rdb := redis.NewClient(&redis.Options{Addr: c.Addr})
	q, err := delayqueue.New(rdb, "q", delayqueue.WithPrefix(c.Prefix), delayqueue.WithMaxAttempts(cmp.Or(c.MaxAttempts, 5)))
	must(err)
	locker, err := core.New(rdb, core.WithPrefix(c.Prefix), core.WithTTL(c.Lease))
	must(err)
	handler := map[string]delayqueue.Handler{"hang": hang(rdb, c), "die": die(rdb, c), "order": order(rdb, c)}[c.Mode]
	w, err := delayqueue.NewWorker(q, locker, handler,
		delayqueue.WithClaimLease(c.Lease), delayqueue.WithConcurrency(cmp.Or(c.Concurrency, 4)), delayqueue.WithConflictBackoff(10*time.Millisecond, 100*time.Millisecond))
	must(err)
	must(w.Start())
	select {}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// hang says that it started, and never returns.
func hang(rdb *redis.Client, c workerConfig) delayqueue.Handler {
	return func(_ context.Context, m delayqueue.Message) error {
		must(rdb.RPush(context.Background(), c.Prefix+":started", m.ID).Err())
		select {}
	}
}

// die works for a while, or ends the process.
func die(rdb *redis.Client, c workerConfig) delayqueue.Handler {
	return func(_ context.Context, m delayqueue.Message) error {
		if m.Name == "poison" {
			os.Exit(1)
		}
		time.Sleep(5 * time.Millisecond)
		return rdb.Incr(context.Background(), c.Prefix+":ran:"+m.ID).Err()
	}
}

// order notes what ran in which order of each key, or ends the process.
func order(rdb *redis.Client, c workerConfig) delayqueue.Handler {
	return func(ctx context.Context, m delayqueue.Message) error {
		if m.Name == "poison" {
			os.Exit(1)
		}
		return rdb.RPush(ctx, c.Prefix+":ran:"+m.Key, m.ID).Err()
	}
}

// start starts a worker process, which ends with ctx.
func start(ctx context.Context, c workerConfig) *exec.Cmd {
	config, err := json.Marshal(c)
	must(err)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), workerVar+"="+string(config))
	cmd.Stdout, cmd.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
	must(cmd.Start())
	return cmd
}

// spawn starts a worker process, which ends with the test.
func spawn(t *testing.T, c workerConfig) *exec.Cmd {
	t.Helper()
	cmd := start(t.Context(), c)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("worker process %d:\n%s%s", cmd.Process.Pid, cmd.Stdout, cmd.Stderr)
		}
	})
	return cmd
}

// leasesEnd ends the claims and locks that processes had which are dead, as time would.
func (b *bench) leasesEnd() {
	b.t.Helper()
	for _, claim := range b.rdb.ZRange(b.t.Context(), b.key("w"), 0, -1).Val() {
		require.NoError(b.t, b.rdb.ZAddXX(b.t.Context(), b.key("w"), redisZ(1, claim)).Err())
	}
	for _, lock := range redistest.Keys(b.t, b.rdb, b.env.Prefix+":lock{}:") {
		require.NoError(b.t, b.rdb.Del(b.t.Context(), lock).Err())
	}
}

func TestProcess_AMessageOfAKilledWorkerIsRunAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.Real(t))
	child := spawn(t, workerConfig{Addr: b.env.Addr, Prefix: b.env.Prefix, Lease: 10 * time.Minute, Mode: "hang"})
	id, behind := b.enqueue(delayqueue.Job{Key: "k", Payload: []byte("work")}), b.enqueue(delayqueue.Job{Key: "k"})
	redistest.Eventually(t, func() bool { return b.rdb.LLen(t.Context(), b.env.Prefix+":started").Val() == 1 }, "the worker did not start")
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	b.leasesEnd()
	var r ran
	b.start(r.handle, delayqueue.WithClaimLease(10*time.Minute))
	s := b.reaches(id, delayqueue.StateDone)
	require.Equal(t, []int{2, 1}, []int{s.Attempts, s.Losses})
	b.reaches(behind, delayqueue.StateDone)
	require.Equal(t, []string{id, behind}, r.ids())
	m := r.all()[0]
	require.Equal(t, []any{2, 1, "work"}, []any{m.Attempt, m.Losses, string(m.Payload)})
}

// What has no key, and was claimed together with a message that kills its process, is not claimed together with it again and
// again: else all of it would be dead letters, and some of that no handler had ever seen.
func TestProcess_AMessageThatKillsItsWorkerTakesNoOthersAlong(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.Real(t))
	config := workerConfig{Addr: b.env.Addr, Prefix: b.env.Prefix, Lease: 10 * time.Minute, Mode: "die", Concurrency: 16}
	var others []string
	for i := range 16 {
		job := delayqueue.Job{ID: fmt.Sprintf("%02d", i)}
		if i == 8 {
			job.Name = "poison"
		} else {
			others = append(others, job.ID)
		}
		b.enqueue(job)
	}
	for range 5 { // as often as it is tried
		require.EqualError(t, spawn(t, config).Wait(), "exit status 1")
		b.leasesEnd()
	}
	b.start(func(context.Context, delayqueue.Message) error { return nil }, delayqueue.WithClaimLease(10*time.Minute))
	require.Equal(t, 5, b.reaches("08", delayqueue.StateDead).Losses)
	for _, id := range others {
		b.reaches(id, delayqueue.StateDone)
	}
}

// ranUnder are the messages of a key in the order in which processes ran them. One that lost its worker may have run
// twice, one after the other: it counts once.
func (b *bench) ranUnder(key string) (ids []string) {
	b.t.Helper()
	return slices.Compact(b.rdb.LRange(b.t.Context(), b.env.Prefix+":ran:"+key, 0, -1).Val())
}

// One message of fifty kills its process whenever it is run, and a process that died is followed by another one.
func TestProcess_MessagesThatKillTheirWorkersBuryNoOthers(t *testing.T) {
	const fifos, each, attempts = 32, 25, 3 // every other FIFO is of a key
	b := setup(t, redistest.Real(t), delayqueue.WithMaxAttempts(attempts), delayqueue.WithMaxDepth(fifos*each))
	killer := func(fifo, i int) bool { return fifo%4 < 2 && i == 10 }
	var work sync.WaitGroup
	for fifo := range fifos {
		work.Go(func() {
			for i := range each {
				job := delayqueue.Job{ID: fmt.Sprintf("%02d-%02d", fifo, i)}
				if fifo%2 == 0 {
					job.Key = fmt.Sprint("k", fifo)
				}
				if killer(fifo, i) {
					job.Name = "poison"
				}
				if _, err := b.queue.Enqueue(t.Context(), job); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	config := workerConfig{Addr: b.env.Addr, Prefix: b.env.Prefix, Lease: 10 * time.Minute, Mode: "order", Concurrency: 16, MaxAttempts: attempts}
	for ended := false; !ended; b.leasesEnd() {
		ctx, stop := context.WithCancel(t.Context())
		child, died := start(ctx, config), make(chan error, 1)
		go func() { died <- child.Wait() }()
		redistest.Eventually(t, func() bool {
			s := b.inState()
			ended = s[0]+s[1] == 0
			return ended || len(died) > 0
		}, "all have ended, or the process died")
		stop()
		if err := <-died; !ended {
			require.EqualError(t, err, "exit status 1")
		}
	}
	for fifo := range fifos {
		var want []string
		for i := range each {
			id, state := fmt.Sprintf("%02d-%02d", fifo, i), delayqueue.StateDone
			if killer(fifo, i) {
				state = delayqueue.StateDead
			} else {
				want = append(want, id)
			}
			s := b.status(id)
			require.Equal(t, state, s.State, "%+v", s)
		}
		if fifo%2 == 0 {
			require.Equal(t, want, b.ranUnder("k"+strconv.Itoa(fifo)), "each ran, in order")
		}
	}
}
