package delayqueue_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// workerVar holds a workerConfig when this test binary is to be a worker.
const workerVar = "PERKEY_DELAYQUEUE_WORKER"

type workerConfig struct {
	Addr, Prefix string
	MaxAttempts  int
}

// workerLease is that of the claims and locks of worker processes: no time ends it during a test, but leasesEnd.
const workerLease = 10 * time.Minute

// workerProcess is a worker in a process of its own. It notes what ran, in which order of each key, until poison ends it or it is killed.
func workerProcess(config string) {
	var c workerConfig
	must(json.Unmarshal([]byte(config), &c))
	rdb := redis.NewClient(&redis.Options{Addr: c.Addr})
	q, err := delayqueue.New(rdb, "q", delayqueue.WithPrefix(c.Prefix), delayqueue.WithMaxAttempts(c.MaxAttempts))
	must(err)
	locker, err := core.New(rdb, core.WithPrefix(c.Prefix), core.WithTTL(workerLease))
	must(err)
	w, err := delayqueue.NewWorker(q, locker, func(ctx context.Context, m delayqueue.Message) error {
		if m.Name == "poison" {
			os.Exit(1)
		}
		time.Sleep(5 * time.Millisecond)
		return rdb.RPush(ctx, c.Prefix+":ran:"+m.Key, m.ID).Err()
	}, delayqueue.WithClaimLease(workerLease), delayqueue.WithConcurrency(16))
	must(err)
	must(w.Start())
	select {}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// untilAWorkerDies starts a worker process, and kills it when done says so. It returns whether it died by itself.
func (b *bench) untilAWorkerDies(attempts int, done func() bool) bool {
	b.t.Helper()
	config := of(json.Marshal(workerConfig{b.env.Addr, b.env.Prefix, attempts}))(b.t)
	ctx, kill := context.WithCancel(b.t.Context())
	cmd, died := exec.CommandContext(ctx, os.Args[0]), make(chan error, 1)
	cmd.Env = append(os.Environ(), workerVar+"="+string(config))
	require.NoError(b.t, cmd.Start())
	go func() { died <- cmd.Wait() }()
	over := false
	redistest.Eventually(b.t, func() bool { over = done(); return over || len(died) > 0 }, "all have ended, or the process died")
	kill()
	if err := <-died; !over {
		require.EqualError(b.t, err, "exit status 1")
	}
	b.leasesEnd()
	return !over
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

// What has no key, and was claimed together with a message that kills its process, is not claimed together with it again and
// again: else all of it would be dead letters, and some of that no handler had ever seen.
func TestProcess_AMessageThatKillsItsWorkerTakesNoOthersAlong(t *testing.T) {
	t.Parallel()
	const attempts = 3
	b := setup(t, redistest.Real(t))
	for i := range 16 {
		b.enqueue(delayqueue.Job{ID: fmt.Sprint(i), Name: map[bool]string{true: "poison"}[i == 8]})
	}
	for range attempts {
		require.True(t, b.untilAWorkerDies(attempts, func() bool { return false }))
	}
	b.startOn(b.newQueue(b.rdb, delayqueue.WithMaxAttempts(attempts)), (&ran{}).handle, delayqueue.WithClaimLease(workerLease))
	require.Equal(t, attempts, b.reaches("8", delayqueue.StateDead).Losses)
	for i := range 16 {
		if i != 8 {
			b.reaches(fmt.Sprint(i), delayqueue.StateDone)
		}
	}
}

// One message of each second pair of FIFOs kills its process whenever it is run, and a process that died is followed by another one.
func TestProcess_MessagesThatKillTheirWorkersBuryNoOthers(t *testing.T) {
	const fifos, each, attempts = 8, 25, 2 // every other FIFO is of a key
	b := setup(t, redistest.Real(t))
	id := func(fifo, i int) string { return fmt.Sprintf("%02d-%02d", fifo, i) }
	kills := func(fifo, i int) bool { return fifo%4 < 2 && i == 10 }
	var work sync.WaitGroup
	for fifo := range fifos {
		work.Go(func() {
			for i := range each {
				job := delayqueue.Job{ID: id(fifo, i), Key: []string{fmt.Sprint("k", fifo), ""}[fifo%2], Name: map[bool]string{true: "poison"}[kills(fifo, i)]}
				assert.NoError(t, errOf(b.queue.Enqueue(t.Context(), job)))
			}
		})
	}
	work.Wait()
	for b.untilAWorkerDies(attempts, func() bool { s := b.inState(); return s[0]+s[1] == 0 }) {
		continue
	}
	for fifo := range fifos {
		var want []string
		for i := range each {
			state := delayqueue.StateDead
			if !kills(fifo, i) {
				state, want = delayqueue.StateDone, append(want, id(fifo, i))
			}
			require.Equal(t, state, b.status(id(fifo, i)).State)
		}
		if fifo%2 == 0 { // one that lost its worker may have run twice, one after the other
			ran := b.rdb.LRange(t.Context(), fmt.Sprint(b.env.Prefix, ":ran:k", fifo), 0, -1).Val()
			require.Equal(t, want, slices.Compact(ran), "each ran, in order")
		}
	}
}
