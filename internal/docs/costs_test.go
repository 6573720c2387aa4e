package docs_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
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
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// traffic counts round trips of clients, and looks of workers for messages that find none.
type traffic struct {
	begun, ended, looks atomic.Int64
	look                cost // of one
}

func (n *traffic) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *traffic) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.begun.Add(1)
		defer n.ended.Add(1)
		err := next(ctx, cmd)
		if c, ok := cmd.(*redis.Cmd); ok {
			if reply, _ := c.Slice(); len(reply) == 9 { // claim.lua's, without a message
				n.looks.Add(1)
			}
		}
		return err
	}
}

func (n *traffic) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n.begun.Add(1)
		defer n.ended.Add(1)
		return next(ctx, cmds)
	}
}

// cost is what an operation costs.
type cost struct{ trips, scripts, commands int64 }

func (c cost) String() string { return fmt.Sprintf("%d | %d | %d", c.trips, c.scripts, c.commands) }

func (c cost) minus(d cost, times int64) cost {
	return cost{c.trips - times*d.trips, c.scripts - times*d.scripts, c.commands - times*d.commands}
}

var commandCalls = regexp.MustCompile(`cmdstat_([a-z|-]+):calls=(\d+)`)

// spent is what a server has done so far, but for PING, looks, and what tests ask, at an instant when no client waits for it.
func (n *traffic) spent(t *testing.T, admin *redis.Client) (c cost) {
	t.Helper()
	for ended := int64(-1); ended != n.begun.Load(); {
		ended = n.ended.Load()
		c = cost{trips: ended}.minus(n.look, n.looks.Load())
		for _, m := range commandCalls.FindAllStringSubmatch(admin.Info(t.Context(), "commandstats").Val(), -1) {
			calls, err := strconv.ParseInt(m[2], 10, 64)
			require.NoError(t, err)
			switch m[1] {
			case "info", "ping", "object|encoding", "hello", "client|setinfo", "client|maint_notifications":
			case "eval", "evalsha":
				c.scripts += calls
				fallthrough
			default:
				c.commands += calls
			}
		}
	}
	return c
}

type settled struct {
	delayqueue.NopObserver
	outcomes chan delayqueue.Outcome
}

func (s settled) OnSettled(_ context.Context, e delayqueue.Settled) { s.outcomes <- e.Outcome }

func (s settled) await(outcome delayqueue.Outcome) {
	for outcome != <-s.outcomes {
		continue
	}
}

// operation is a row of the table in docs/benchmarks.md. Of what run does, that is counted which it gives to count.
type operation struct {
	row string
	run func(count func(do func()))
}

// operations has a worker's look first, and then what is counted while nothing is subscribed to and the queue is empty.
func operations(t *testing.T, admin *redis.Client, n *traffic, client func() *redis.Client) []operation {
	t.Helper()
	ctx, rdb := t.Context(), client()
	on := testbed.On(t, rdb, "perkey", core.WithRenewalClient(rdb))
	l, other := on.Locker, on.Rival
	release := func(held interface{ Release(context.Context) error }) { require.NoError(t, held.Release(ctx)) }
	all := func(do func()) func(func(func())) { return func(count func(func())) { count(do) } }
	pair := func(opts ...core.AcquireOption) func(func(func())) {
		return all(func() { release(testbed.Take(t, l, "k", opts...)) })
	}
	contended := func(wait, handOver func(do func())) {
		lease, next := testbed.Take(t, l, "k"), make(chan *core.Lease, 1)
		wait(func() {
			go func() { lease, _ := other.Acquire(ctx, "k"); next <- lease }()
			redistest.Eventually(t, func() bool { return admin.ObjectEncoding(ctx, "perkey:lock{}:k").Val() == "listpack" }, "another waits")
		})
		handOver(func() { release(lease); lease = <-next })
		release(lease)
	}
	uncounted := func(do func()) { do() }
	serve := func(policy core.ConflictPolicy, opts ...httplock.Option) http.Handler {
		return httplock.PerKey(l.Guard(policy), func(*http.Request) (string, error) { return "k", nil }, append(opts, httplock.WithAnonymous())...)(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	}
	request := func(to http.Handler, status int, id string) {
		r := testbed.Request(t, http.MethodPost, "/", "{}")
		r.Header.Set("Idempotency-Key", id)
		require.Equal(t, status, testbed.Do(to, r).Status)
	}
	store, err := idempotency.New(rdb)
	require.NoError(t, err)
	served, requests := serve(core.RejectConflicts, httplock.WithIdempotency(store)), 0
	queue, ends := testbed.NewQueue(t, client(), "q"), settled{outcomes: make(chan delayqueue.Outcome, 100)}
	parks := serve(delayqueue.Policy(queue))
	work := func(q *delayqueue.Queue) *delayqueue.Worker {
		return testbed.Work(t, q, l, func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "n" {
				return nil
			}
			return httplock.Replay(parks)(ctx, m)
		}, delayqueue.WithObserver(ends))
	}
	worker := work(testbed.NewQueue(t, rdb, "q", delayqueue.WithRetention(2*time.Hour)))
	run := func(key string) func(func(func())) {
		return func(count func(func())) {
			worker.Pause()
			testbed.Enqueue(t, queue, delayqueue.Job{Name: "n", Key: key})
			count(func() { worker.Resume(); ends.await(delayqueue.OutcomeDone) })
		}
	}
	parked := func(count func(func())) {
		holder := testbed.Take(t, other, "k")
		count(func() {
			request(parks, http.StatusAccepted, "")
			release(holder)
			ends.await(delayqueue.OutcomeDone)
		})
	}
	run("")(uncounted) // what remembers the ends of these two lives for so long that others need not lengthen it each second
	parked(uncounted)
	require.NoError(t, worker.Stop(ctx))
	worker = work(queue)
	held, ttl := testbed.Take(t, other, "held"), time.Minute
	return []operation{
		{"a worker's look that finds nothing", all(func() {
			before := n.looks.Load()
			worker.Resume()
			redistest.Eventually(t, func() bool { return n.looks.Load() > before }, "a look")
		})},
		{"32 leases renewed together", func(count func(func())) {
			for together := false; !together; {
				var taken sync.WaitGroup // at once, so that they are renewed so
				leases := make([]*core.Lease, 32)
				for i := range leases {
					taken.Go(func() { leases[i] = testbed.Take(t, l, strconv.Itoa(i), core.LeaseTTL(3500*time.Millisecond)) })
				}
				taken.Wait()
				count(func() {
					select {
					case e := <-on.Renewals:
						together = e.Leases == len(leases)
					case <-leases[0].Context().Done(): // too slow
					}
				})
				for _, lease := range leases {
					_ = lease.Release(ctx)
				}
			}
		}},
		{"its run: claim, end", run("")},
		{"its run with a key: claim, lock, release, end", run("j")},
		{"a parked request, until it has run", parked},
		{"a job stored", all(func() { testbed.Enqueue(t, queue, delayqueue.Job{Name: "n", Delay: time.Minute}) })},
		{"a pair: acquire, release", pair()},
		{"a shared pair", pair(core.Shared())},
		{"a counted pair", pair(core.Counted(3))},
		{"a refused try", all(func() { _, err := l.TryAcquire(ctx, "held"); require.ErrorIs(t, err, core.ErrConflict) })},
		{"four keys at once", func(count func(func())) {
			var set *core.LeaseSet
			count(func() { set, err = l.TryAcquireAll(ctx, []string{"a", "b", "c", "d"}) })
			require.NoError(t, err)
			release(set) // in as many round trips as it happens
		}},
		{"an acquire that waits for another process", func(count func(func())) { contended(count, uncounted) }},
		{"the release that hands over to it", func(count func(func())) { contended(uncounted, count) }},
		{"a lease made longer", all(func() { ttl += time.Second; require.NoError(t, held.Extend(ctx, ttl)) })}, // what is long enough costs less
		{"a request with a new Idempotency-Key", all(func() { requests++; request(served, http.StatusCreated, strconv.Itoa(requests)) })},
		{"a repetition of it", all(func() { request(served, http.StatusCreated, "same") })},
	}
}

var update = flag.Bool("update", false, "write what operations cost to docs/benchmarks.md")

// The page says what each operation costs. What else a process does now and then, such as a look at its subscription, adds to a cost; so
// the least of several times counts.
func TestBenchmarks_SayWhatEachOperationCosts(t *testing.T) {
	t.Parallel()
	server, n := redistest.Start(t), &traffic{}
	admin := redistest.Client(t, &redis.Options{Addr: server.Addr})
	page := filepath.Join(root, "docs", "benchmarks.md")
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, o := range operations(t, admin, n, func() *redis.Client {
		rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
		rdb.AddHook(n)
		return rdb
	}) {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(o.row) + ` \| (\d+ \| \d+ \| \d+) \|$`)
		said := row.FindStringSubmatch(string(text))
		require.NotNil(t, said, "a row for %q", o.row)
		c, least := cost{}, cost{1e9, 1e9, 1e9}
		for range 30 {
			o.run(func(do func()) {
				before := n.spent(t, admin)
				do()
				c = n.spent(t, admin).minus(before, 1)
			})
			least = cost{min(least.trips, c.trips), min(least.scripts, c.scripts), min(least.commands, c.commands)}
			if least.String() == said[1] && !*update {
				break
			}
		}
		if n.look.trips == 0 {
			n.look = least
		}
		if *update {
			text = row.ReplaceAll(text, []byte(fmt.Sprintf("| %s | %s |", o.row, least)))
			continue
		}
		assert.Equal(t, said[1], least.String(), "%s: go test ./internal/docs -run Costs -update writes it", o.row)
	}
	if *update {
		require.NoError(t, os.WriteFile(page, text, 0o600))
	}
}
