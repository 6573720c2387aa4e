package docs_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
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
)

// trips counts how often a client waits for Redis.
type trips struct{ atomic.Int64 }

func (n *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.Add(1)
		return next(ctx, cmd)
	}
}

func (n *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n.Add(1)
		return next(ctx, cmds)
	}
}

// cost is what an operation costs.
type cost struct{ trips, scripts, commands int64 }

func (c cost) String() string { return fmt.Sprintf("%d | %d | %d", c.trips, c.scripts, c.commands) }

var commandCalls = regexp.MustCompile(`cmdstat_([a-z|-]+):calls=(\d+)`)

// spent is what a server has done so far, but for PING and what tests ask.
func spent(t *testing.T, admin *redis.Client, n *trips) cost {
	t.Helper()
	c := cost{trips: n.Load()}
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
	return c
}

// operations are by their rows in the table of docs/benchmarks.md. What one leaves behind, undo removes.
func operations(t *testing.T, admin, rdb, otherRDB *redis.Client, undo *func()) map[string]func() {
	t.Helper()
	ctx := t.Context()
	l, other := locker(t, rdb), locker(t, otherRDB)
	pair := func(opts ...core.AcquireOption) func() {
		return func() {
			lease, err := l.TryAcquire(ctx, "k", opts...)
			require.NoError(t, err)
			require.NoError(t, lease.Release(ctx))
		}
	}
	held, err := other.TryAcquire(ctx, "held")
	require.NoError(t, err)
	queue, err := delayqueue.New(rdb, "q")
	require.NoError(t, err)
	store, err := idempotency.New(rdb)
	require.NoError(t, err)
	key := func(*http.Request) (string, error) { return "k", nil }
	served := httplock.PerKey(l.Guard(core.RejectConflicts), key, httplock.WithIdempotency(store), httplock.WithAnonymous())(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	requests, ttl := 0, time.Minute
	request := func(id func() string) func() {
		return func() {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", id())
			w := httptest.NewRecorder()
			served.ServeHTTP(w, r)
			require.Equal(t, http.StatusCreated, w.Code, w.Body)
		}
	}
	request(func() string { return "same" })()
	return map[string]func(){
		"a pair: acquire, release": pair(),
		"a shared pair":            pair(core.Shared()),
		"a counted pair":           pair(core.Counted(3)),
		"a refused try": func() {
			_, err := l.TryAcquire(ctx, "held")
			require.ErrorIs(t, err, core.ErrConflict)
		},
		"four keys at once": func() {
			all, err := l.TryAcquireAll(ctx, []string{"a", "b", "c", "d"})
			require.NoError(t, err)
			*undo = func() { require.NoError(t, all.Release(ctx)) } // in as many round trips as it happens
		},
		"a pair, a wait and a hand-over to another process, its release": func() {
			lease, err := l.TryAcquire(ctx, "k")
			require.NoError(t, err)
			next := make(chan *core.Lease)
			go func() {
				lease, _ := other.Acquire(ctx, "k")
				next <- lease
			}()
			redistest.Eventually(t, func() bool { return admin.ObjectEncoding(ctx, "perkey:lock{}:k").Val() == "listpack" }, "another waits")
			require.NoError(t, lease.Release(ctx))
			require.NoError(t, (<-next).Release(ctx))
		},
		"a lease made longer": func() { ttl += time.Second; require.NoError(t, held.Extend(ctx, ttl)) }, // what is long enough costs less
		"a job stored": func() {
			_, err := queue.Enqueue(ctx, delayqueue.Job{Name: "n", Payload: []byte("x"), Delay: time.Minute})
			require.NoError(t, err)
		},
		"a request with a new Idempotency-Key": request(func() string { requests++; return strconv.Itoa(requests) }),
		"a repetition of it":                   request(func() string { return "same" }),
	}
}

func locker(t *testing.T, rdb *redis.Client) *core.Locker {
	t.Helper()
	l, err := core.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

var update = flag.Bool("update", false, "write what operations cost to docs/benchmarks.md")

// The page says what each operation costs. What else a process does now and then, such as a look at its subscription, adds to a cost; so
// the least of several times counts.
func TestBenchmarks_SayWhatEachOperationCosts(t *testing.T) {
	t.Parallel()
	server, n := redistest.Start(t), &trips{}
	admin := redistest.Client(t, &redis.Options{Addr: server.Addr})
	client := func() *redis.Client {
		rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
		rdb.AddHook(n)
		return rdb
	}
	undo := func() {}
	all := operations(t, admin, client(), client(), &undo)
	page := filepath.Join(root, "docs", "benchmarks.md")
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for what, do := range all {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(what) + ` \| (\d+ \| \d+ \| \d+) \|$`)
		said := row.FindStringSubmatch(string(text))
		require.NotNil(t, said, "a row for %q", what)
		least := cost{}
		for range 30 {
			before := spent(t, admin, n)
			do()
			after := spent(t, admin, n)
			undo()
			undo = func() {}
			c := cost{after.trips - before.trips, after.scripts - before.scripts, after.commands - before.commands}
			if least.trips == 0 || c.commands < least.commands {
				least = c
			}
			if c.String() == said[1] && !*update {
				break
			}
		}
		if *update {
			text = row.ReplaceAll(text, []byte(fmt.Sprintf("| %s | %s |", what, least)))
			continue
		}
		assert.Equal(t, said[1], least.String(), "%s: go test ./internal/docs -run Costs -update writes it", what)
	}
	if *update {
		require.NoError(t, os.WriteFile(page, text, 0o600))
	}
}
