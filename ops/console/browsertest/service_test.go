package browsertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
	"github.com/perkey-go/perkey/retry"
)

// hostile are keys that try to be more than text.
var hostile = []string{
	`<script>document.title='owned'</script>`,
	`"><img src=x onerror="document.title='owned'">`,
	"order:\xff\xfe\x80?&#%2F/../\u202egnp.exe",
	strings.Repeat("k", 508) + "<b>&",
	`javascript:alert(1)//{{.}}`,
}

// service is a small fleet under load.
type service struct {
	url     string
	prefix  string
	rdb     *redis.Client
	lockers []*core.Locker
	ship    *delayqueue.Queue
	mail    *delayqueue.Queue
	store   *idempotency.Store
	held    *core.Lease // of order:4711
	server  *httptest.Server

	workers []*delayqueue.Worker
	beacons []*ops.Beacon
}

// newService starts three replicas with held keys, calls that wait, parked work, dead letters of two causes, and a queue that
// nobody works. change may set more options of its console, and keys are held besides.
func newService(t testing.TB, rdb *redis.Client, prefix string, change func(*console.Options), keys ...string) *service {
	t.Helper()
	s := &service{prefix: prefix, rdb: rdb}
	ctx, cancel := context.WithCancel(context.Background())
	var load sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		load.Wait()
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, b := range s.beacons {
			_ = b.Close()
		}
		for _, w := range s.workers {
			_ = w.Stop(end)
		}
		for _, l := range s.lockers {
			_ = l.Close()
		}
	})
	must := func(err error) {
		t.Helper()
		require.NoError(t, err)
	}
	var err error
	s.ship, err = delayqueue.New(rdb, "ship", delayqueue.WithPrefix(prefix), delayqueue.WithService("shop"))
	must(err)
	s.mail, err = delayqueue.New(rdb, "mail", delayqueue.WithPrefix(prefix), delayqueue.WithService("shop"))
	must(err)
	s.store, err = idempotency.New(rdb, idempotency.WithPrefix(prefix))
	must(err)
	for i := range 3 {
		locker := s.startReplica(t)
		load.Go(func() { pay(ctx, locker, i > 0) })
	}
	s.held, err = s.lockers[0].Acquire(ctx, "order:4711", core.Named("POST /orders/:id/ship", "req-0c0ffee"))
	must(err)
	for i, key := range keys {
		_, err := s.lockers[i%3].Acquire(ctx, key, core.Named("<i>work</i>", "id\u202e"))
		must(err)
	}
	for range 5 {
		_, err := s.lockers[0].Acquire(ctx, "report:daily", core.Shared(), core.Named("GET /report", ""))
		must(err)
	}
	_, err = s.lockers[1].Acquire(ctx, "cart:lost", core.Named("PUT /carts/:id", "req-1"))
	must(err)
	must(rdb.Del(ctx, prefix+":lock{}:cart:lost").Err())
	s.fillStores(ctx, t)
	o := console.Options{Locker: s.lockers[0], Redis: rdb, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	handler, err := console.New(o)
	must(err)
	s.server = httptest.NewServer(handler)
	t.Cleanup(s.server.Close)
	s.url = s.server.URL + "/"
	return s
}

// startReplica starts a process's locker, worker and beacon.
func (s *service) startReplica(t testing.TB) *core.Locker {
	t.Helper()
	recorder := ops.NewRecorder()
	locker, err := core.New(s.rdb, core.WithPrefix(s.prefix), core.WithTTL(6*time.Second), core.WithObserver(recorder.Locks(nil)))
	require.NoError(t, err)
	s.lockers = append(s.lockers, locker)
	queue := testbed.NewQueue(t, s.rdb, "ship", delayqueue.WithPrefix(s.prefix), delayqueue.WithService("shop"), delayqueue.WithQueueObserver(recorder.Queues(nil)))
	worker, err := delayqueue.NewWorker(queue, locker, work, delayqueue.WithConcurrency(4), delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	require.NoError(t, worker.Start())
	s.workers = append(s.workers, worker)
	beacon, err := ops.StartBeacon(s.rdb, recorder, locker, ops.WithWorkers(worker), ops.WithService("shop"), ops.WithInterval(time.Second))
	require.NoError(t, err)
	s.beacons = append(s.beacons, beacon)
	return locker
}

// pay calls guards of carts and orders until ctx ends; if waits is set, two calls wait for a key that stays held.
func pay(ctx context.Context, locker *core.Locker, waits bool) {
	var calls sync.WaitGroup
	defer calls.Wait()
	guard := locker.Guard(retry.Policy{MaxWait: 3 * time.Second})
	for range 4 {
		calls.Go(func() {
			for ctx.Err() == nil {
				key, name := fmt.Sprintf("cart:%d", rand.N(12)), "PUT /carts/:id"
				if rand.N(3) == 0 {
					key, name = fmt.Sprintf("order:%d", 4700+rand.N(6)), "POST /orders/:id/pay"
				}
				_ = guard.Do(ctx, core.Call{Key: key, Name: name, ID: fmt.Sprintf("req-%06x", rand.N(1<<24))}, func(ctx context.Context) error {
					pause(ctx, 5*time.Millisecond+rand.N(60*time.Millisecond))
					return nil
				})
				pause(ctx, rand.N(40*time.Millisecond))
			}
		})
	}
	if waits {
		for range 2 {
			calls.Go(func() {
				_ = locker.Do(ctx, "order:4711", func(context.Context) error { return nil }, core.Named("POST /orders/:id/ship", fmt.Sprintf("req-%06x", rand.N(1<<24))))
			})
		}
	}
}

// fillStores parks work, and stores responses of requests with an Idempotency-Key.
func (s *service) fillStores(ctx context.Context, t testing.TB) {
	t.Helper()
	for i := range 40 {
		job := delayqueue.Job{Key: fmt.Sprintf("order:%d", 4800+i%9), Name: "POST /orders/:id/ship", Principal: fmt.Sprintf("user-%d", i%5), Payload: []byte(`{"card":"secret-payload"}`)}
		if i%4 == 0 {
			job.Name = "fail card"
		} else if i%7 == 0 {
			job.Name = "fail <b>carrier</b>"
		}
		_, err := s.ship.Enqueue(ctx, job)
		require.NoError(t, err)
	}
	for i := range 6 {
		_, err := s.ship.Enqueue(ctx, delayqueue.Job{Key: "order:4711", Name: "POST /orders/:id/ship", Principal: fmt.Sprintf("user-%d", i%5), Payload: []byte("secret-payload")})
		require.NoError(t, err)
	}
	for i := range 23 {
		_, err := s.mail.Enqueue(ctx, delayqueue.Job{Name: "receipt", Principal: fmt.Sprintf("user-%d", i), Payload: []byte("secret-payload")})
		require.NoError(t, err)
	}
	begun := idempotency.Work{Name: idempotency.NameOf("POST /payments", "user-7", "pay-1"), Fingerprint: "f"}
	_, err := s.store.Begin(ctx, begun, 1)
	require.NoError(t, err)
	require.NoError(t, s.store.Finish(ctx, begun, 1, []byte("secret-response")))
	begun.Name = idempotency.NameOf("POST /payments", "user-7", "pay-2")
	_, err = s.store.Begin(ctx, begun, 1)
	require.NoError(t, err)
}

func work(ctx context.Context, m delayqueue.Message) error {
	pause(ctx, 20*time.Millisecond)
	switch m.Name {
	case "fail card":
		return delayqueue.SkipRetry(errors.New("card declined by the bank: 05 do not honour"))
	case "fail <b>carrier</b>":
		return delayqueue.SkipRetry(errors.New("carrier API: <h1>502 Bad Gateway</h1>\nsecond line"))
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// settled waits until the parked work is done or dead, but for what nobody can do.
func (s *service) settled(t testing.TB) {
	t.Helper()
	redistest.Eventually(t, func() bool {
		stats, err := s.ship.Stats(t.Context())
		return err == nil && stats.Dead >= 14 && stats.Queued+stats.Running <= 6
	}, "the parked work is done or dead")
}
