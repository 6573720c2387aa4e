package ops_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// durable are the arguments of a server of which there is nothing to say.
var durable = []string{"--appendonly", "yes"}

func durableRedis(t testing.TB, args ...string) (*redistest.Server, *redis.Client) {
	t.Helper()
	s := redistest.Start(t, append(slices.Clone(durable), args...)...)
	return s, redistest.Client(t, &redis.Options{Addr: s.Addr})
}

// examine examines. How long this machine takes to reply is not looked at: others use it too.
func examine(t testing.TB, rdb redis.UniversalClient, o ops.ExamineOptions) []ops.Finding {
	t.Helper()
	facts, err := ops.ReadFacts(t.Context(), rdb, o)
	require.NoError(t, err)
	for i := range facts.Servers.Value {
		facts.Servers.Value[i].RoundTrips = nil
	}
	return facts.Findings(time.Now())
}

// found examines, and returns what is found of these kinds, as severity, kind and subject.
func found(t testing.TB, rdb redis.UniversalClient, o ops.ExamineOptions, kinds ...string) []string {
	t.Helper()
	is := []string{}
	for _, f := range examine(t, rdb, o) {
		if len(kinds) == 0 || slices.Contains(kinds, f.Kind) {
			is = append(is, fmt.Sprintf("%s %s %s", f.Severity, f.Kind, f.Subject))
		}
	}
	return is
}

// tell writes the entry of a process that told just now, by a clock that is ahead.
func tell(t testing.TB, rdb redis.UniversalClient, prefix, id string, ahead time.Duration, more string) {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	putEntry(t, rdb, prefix, id, fmt.Sprintf(`{"id":%q,"ttl":60000,"at":%d%s}`, id, now.Add(ahead).UnixMilli(), more))
}

func TestExamine_ServersOnTheirOwn(t *testing.T) {
	t.Parallel()
	server, rdb := durableRedis(t)
	tell(t, rdb, "perkey", "a", 0, "")
	require.Empty(t, found(t, rdb, ops.ExamineOptions{}), "all is well")
	set := func(setting, value string) func() {
		was := rdb.ConfigGet(t.Context(), setting).Val()[setting]
		require.NoError(t, rdb.ConfigSet(t.Context(), setting, value).Err())
		return func() { require.NoError(t, rdb.ConfigSet(t.Context(), setting, was).Err()) }
	}
	back := set("maxmemory-policy", "allkeys-lru")
	require.Equal(t, []string{"act eviction " + server.Addr}, found(t, rdb, ops.ExamineOptions{}))
	back()
	back = set("appendonly", "no")
	require.Equal(t, []string{"look persistence " + server.Addr}, found(t, rdb, ops.ExamineOptions{}))
	snapshots := set("save", "3600 1")
	require.Empty(t, found(t, rdb, ops.ExamineOptions{}))
	snapshots()
	back()
	redistest.Eventually(t, func() bool { // else a child of the server outlives it, and writes into a folder that goes
		return ops.ParseInfo(rdb.Info(t.Context(), "persistence").Val())["aof_rewrite_in_progress"] == "0"
	}, "the log is rewritten")
	used := ops.ParseInfo(rdb.Info(t.Context(), "memory").Val())["used_memory"]
	back = set("maxmemory", used)
	require.Equal(t, []string{"act memory " + server.Addr}, found(t, rdb, ops.ExamineOptions{}))
	back()
	back = set("maxmemory", "1gb")
	require.Empty(t, found(t, rdb, ops.ExamineOptions{}))
	back()
}

func TestExamine_Latency(t *testing.T) {
	t.Parallel()
	server, _ := durableRedis(t)
	proxy := redistest.NewProxy(t, server.Addr)
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr})
	const later = 40 * time.Millisecond // in each direction
	proxy.Delay(func() time.Duration { return later })
	all, err := ops.Examine(t.Context(), rdb, ops.ExamineOptions{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(all, func(f ops.Finding) bool { return f.Kind == "latency" && f.Subject == proxy.Addr }), "%v", all)
	servers := ops.ReadServers(t.Context(), rdb).Value
	require.Len(t, servers[0].RoundTrips, 3)
	require.GreaterOrEqual(t, slices.Min(servers[0].RoundTrips), 2*later)
}

func TestExamine_AReplicaPair(t *testing.T) {
	t.Parallel()
	primary, rdb := durableRedis(t)
	require.Empty(t, found(t, rdb, ops.ExamineOptions{}, "replicas", "read_only"), "it has none")
	host, port, err := net.SplitHostPort(primary.Addr)
	require.NoError(t, err)
	replica, copied := durableRedis(t, "--replicaof", host, port)
	redistest.Eventually(t, func() bool { return strings.Contains(rdb.Info(t.Context(), "replication").Val(), "state=online") }, "it has one")
	require.Equal(t, []string{"look replicas " + primary.Addr}, found(t, rdb, ops.ExamineOptions{}, "replicas", "read_only"))
	redistest.Eventually(t, func() bool { // it may still be loading
		return slices.Equal([]string{"act read_only " + replica.Addr}, found(t, copied, ops.ExamineOptions{}, "replicas", "read_only"))
	}, "it is read-only")
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	require.Empty(t, found(t, rdb, ops.ExamineOptions{}, "replicas"))
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	require.NoError(t, rdb.Wait(t.Context(), 1, time.Second).Err())
	require.Empty(t, found(t, rdb, ops.ExamineOptions{}, "replicas"), "somebody waits")
}

func TestExamine_Sentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	require.Equal(t, []string{"look persistence the primary", "look replicas the primary"},
		found(t, s.Client(t), ops.ExamineOptions{}, "replicas", "persistence", "away", "read_only"))
}

// Every primary of a Cluster is asked, and one that is away hides no other.
func TestExamine_Cluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.Client(t)
	one, other := c.NodeOf(t, "k"), c.AnotherThan(t, "k")
	tell(t, rdb, "perkey", "a", 0, "")
	require.NoError(t, redistest.Client(t, &redis.Options{Addr: one.Addr}).ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err())
	require.Equal(t, []string{"act eviction " + one.Addr}, found(t, rdb, ops.ExamineOptions{}, "eviction", "away", "fleet"))
	facts, err := ops.ReadFacts(t.Context(), rdb, ops.ExamineOptions{})
	require.NoError(t, err)
	require.Len(t, facts.Servers.Value, 3)
	other.Pause()
	defer other.Resume()
	require.Equal(t, []string{"act away " + other.Addr, "act eviction " + one.Addr}, found(t, rdb, ops.ExamineOptions{}, "eviction", "away"))
}

func TestExamine_RedisAwaySaysSoWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(testing.TB) *redis.Client{"silent": redistest.Silent, "refuses": redistest.Refuses} {
		synctest.Test(t, func(t *testing.T) {
			rdb, began := away(t), time.Now()
			all, err := ops.Examine(t.Context(), rdb, ops.ExamineOptions{})
			require.NoError(t, err)
			assert.Less(t, time.Since(began), 2*time.Second, name)
			require.NotEmpty(t, all)
			assert.Equal(t, [2]string{"away", "act"}, [2]string{all[0].Kind, string(all[0].Severity)}, name)
			for _, f := range all[1:] {
				assert.Equal(t, ops.SeverityUnknown, f.Severity, "%s: nothing else is known", name)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = ops.Examine(ctx, rdb, ops.ExamineOptions{})
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

func TestExamine_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t).Client(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": rdb.Options().Addr}})
	defer func() { _ = ring.Close() }()
	for _, c := range []struct {
		rdb    redis.UniversalClient
		prefix string
	}{{nil, ""}, {(*redis.Client)(nil), ""}, {rdb, "{"}, {ring, ""}} {
		_, err := ops.Examine(t.Context(), c.rdb, ops.ExamineOptions{Prefix: c.prefix})
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
}

// The embedded Redis tells little of itself: what is not known is said, and nothing is made up.
func TestExamine_WhatIsNotToldIsNotKnown(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) { // a round trip takes no time
		rdb := env.Client(t)
		all, err := ops.Examine(t.Context(), rdb, ops.ExamineOptions{Prefix: env.Prefix})
		require.NoError(t, err)
		for _, f := range all {
			assert.Equal(t, ops.SeverityUnknown, f.Severity, "%+v", f)
			assert.NotEmpty(t, f.ByHand)
		}
		addr := rdb.Options().Addr
		assert.Equal(t, []string{"unknown fleet ", "unknown eviction " + addr, "unknown persistence " + addr, "unknown rights " + addr},
			found(t, rdb, ops.ExamineOptions{Prefix: env.Prefix}))
	})
}

func TestExamine_ProcessesThatAreNotAlike(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rdb, o := env.Client(t), ops.ExamineOptions{Prefix: env.Prefix}
	kinds := []string{"fleet", "versions", "configs", "clocks", "services", "partitions"}
	require.Equal(t, []string{"unknown fleet "}, found(t, rdb, o, kinds...))
	config := func(hash string) string { return `,"service":"shop","config":{"version":1,"hash":"` + hash + `"}` }
	tell(t, rdb, env.Prefix, "a", 2*time.Second, `,"version":"v1.0.0"`+config("c1"))
	tell(t, rdb, env.Prefix, "b", -2*time.Second, `,"version":"v1.0.0"`+config("c1"))
	tell(t, rdb, env.Prefix, "c", 0, `,"service":"bank","config":{"version":1,"hash":"c3"}`)
	require.Empty(t, found(t, rdb, o, kinds...), "another service has another file, and one does not tell its version")
	tell(t, rdb, env.Prefix, "b", 10*time.Second, `,"version":"v1.1.0"`+config("c2"))
	require.Equal(t, []string{"look clocks ", "look configs shop", "look versions "}, found(t, rdb, o, kinds...))
}

// discards is a worker's option that keeps its log silent.
var discards = delayqueue.WithLogger(slog.New(slog.DiscardHandler))

func TestExamine_AQueue(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rdb, o, ctx := env.Client(t), ops.ExamineOptions{Prefix: env.Prefix}, t.Context()
	kinds := []string{"queue", "no_worker", "late", "paused", "dead", "expiring", "services", "partitions"}
	require.Empty(t, found(t, rdb, o, kinds...), "there is no queue")
	recorder := ops.NewRecorder()
	newQueue := func(opts ...delayqueue.Option) *delayqueue.Queue {
		return testbed.NewQueue(t, rdb, "ship", append([]delayqueue.Option{delayqueue.WithPrefix(env.Prefix), delayqueue.WithQueueObserver(recorder.Queues(nil))}, opts...)...)
	}
	q := newQueue(delayqueue.WithService("shop"), delayqueue.WithPartitions(1))
	_, err := q.Enqueue(ctx, delayqueue.Job{ID: "m"})
	require.NoError(t, err)
	require.Empty(t, found(t, rdb, o, kinds...), "a worker may come yet")
	require.NoError(t, rdb.HSet(ctx, env.Prefix+":queue:{ship}:c", "claimed", time.Now().Add(-time.Minute).UnixMilli()).Err())
	require.Equal(t, []string{"act no_worker ship"}, found(t, rdb, o, kinds...))
	require.NoError(t, q.Pause(ctx, time.Hour))
	require.Equal(t, []string{"look paused ship"}, found(t, rdb, o, kinds...))
	require.NoError(t, q.Resume(ctx))
	require.Equal(t, []string{"act no_worker ship"}, found(t, rdb, o, kinds...))

	locker := newLocker(t, env, core.WithObserver(recorder.Locks(nil)))
	work := func(q *delayqueue.Queue, h delayqueue.Handler) *delayqueue.Worker {
		return testbed.Work(t, q, locker, h, discards)
	}
	fails := work(q, func(context.Context, delayqueue.Message) error { return delayqueue.SkipRetry(errors.New("broken")) })
	beacon := startBeacon(t, rdb, recorder, locker, ops.WithWorkers(fails))
	redistest.Eventually(t, func() bool { return slices.Equal(found(t, rdb, o, kinds...), []string{"act dead ship"}) }, "it died just now")
	require.NoError(t, beacon.Close())
	require.Equal(t, []string{"look dead ship"}, found(t, rdb, o, kinds...), "nobody tells when it died")
	require.NoError(t, q.Purge(ctx, "m"))
	require.Empty(t, found(t, rdb, o, kinds...))
	require.NoError(t, fails.Stop(ctx))

	other := work(newQueue(delayqueue.WithService("bank"), delayqueue.WithPartitions(4)), func(context.Context, delayqueue.Message) error { return nil })
	startBeacon(t, rdb, recorder, locker, ops.WithWorkers(other))
	redistest.Eventually(t, func() bool {
		return slices.Equal(found(t, rdb, o, kinds...), []string{"act partitions ship", "act services ship"})
	}, "another service works here")
}

func TestExamine_Rights(t *testing.T) {
	t.Parallel()
	server, admin := durableRedis(t)
	tell(t, admin, "perkey", "a", 0, "")
	as := func(name string, rights ...string) *redis.Client {
		redistest.AddUser(t, admin, name, rights)
		return redistest.Client(t, &redis.Options{Addr: server.Addr, Username: name, Password: redistest.Password})
	}
	require.Empty(t, found(t, admin, ops.ExamineOptions{}, "rights"), "it may do all")
	reads := redistest.Rights(t, "ops.ReadFacts", "ops.ReadFleet", "queues")
	services := append(redistest.Rights(t, "locks", "locks that are waited for", "queues", "a Beacon"), reads...)
	has := as("service", services...)
	require.Empty(t, found(t, has, ops.ExamineOptions{}), "what the docs print is enough, to be examined and to examine")
	require.Empty(t, redistest.Denied(t, admin))
	lacks := as("lacks", slices.DeleteFunc(slices.Clone(services), func(r string) bool { return r == "+pexpire" || r == "&perkey:wake:*" })...)
	for rdb, user := range map[*redis.Client]string{lacks: "", admin: "lacks"} {
		all := examine(t, rdb, ops.ExamineOptions{User: user})
		require.Len(t, all, 1)
		assert.Equal(t, "rights", all[0].Kind)
		assert.Equal(t, `User "lacks" of `+server.Addr+" lacks rights that services need.", all[0].Text)
		assert.Equal(t, []ops.Evidence{
			{Figure: "missing for locks", Is: "+pexpire", Want: "none"},
			{Figure: "missing for locks that are waited for", Is: "&perkey:wake:*", Want: "none"},
			{Figure: "missing for a Beacon", Is: "+pexpire", Want: "none"},
		}, all[0].Evidence)
	}
	require.Equal(t, []string{"unknown rights " + server.Addr}, found(t, admin, ops.ExamineOptions{User: "nobody"}))
	wrong, err := ops.Examine(t.Context(), redistest.Client(t, &redis.Options{Addr: server.Addr, Username: "service", Password: "wrong"}), ops.ExamineOptions{})
	require.NoError(t, err)
	require.Equal(t, "Redis at "+server.Addr+" denies the request.", wrong[0].Text)
	modest := as("modest", slices.DeleteFunc(slices.Clone(services), func(r string) bool {
		return strings.HasPrefix(r, "+config") || strings.HasPrefix(r, "+acl")
	})...)
	require.Empty(t, found(t, modest, ops.ExamineOptions{}, "persistence"), "INFO tells of the append-only file")
	require.NoError(t, admin.ConfigSet(t.Context(), "appendonly", "no").Err())
	require.Equal(t, []string{"unknown persistence " + server.Addr, "unknown rights " + server.Addr}, found(t, modest, ops.ExamineOptions{}))
	blind := as("blind", "+ping", "+time")
	for _, one := range found(t, blind, ops.ExamineOptions{}) {
		assert.True(t, strings.HasPrefix(one, "unknown "), one)
	}
}

func TestRights_OfOtherRules(t *testing.T) {
	t.Parallel()
	user := func(commands string, keys, channels any) map[any]any {
		return map[any]any{"flags": []any{"on"}, "commands": commands, "keys": keys, "channels": channels}
	}
	categories := map[string][]string{"write": {"hset", "set"}, "pubsub": {"publish", "pubsub|numsub", "subscribe"}, "dangerous": {"info"}}
	for name, c := range map[string]struct {
		user any
		want map[string]string // of a use, what is missing
	}{
		"all":                  {user("+@all", "~*", "&*"), nil},
		"as a list, before 7":  {[]any{"commands", "+@all", "keys", []any{"*"}, "channels", []any{"*"}}, nil},
		"but what no one uses": {user("+@all -@dangerous -flushall", "~team/*", "&team/*"), nil},
		"but a category":       {user("+@all -@write +set", "~*", "&*"), map[string]string{"locks": "+hset"}},
		"but a container":      {user("+@all -pubsub", "~*", "&*"), map[string]string{"locks that are waited for": "+pubsub|numsub"}},
		"and part of one":      {user("+@all -pubsub +pubsub|numsub", "~*", "&*"), map[string]string{"locks that are waited for": ""}},
		"reads only":           {user("+@all", "%R~*", "&*"), map[string]string{"locks": "~team/x:lock{}:*"}},
		"two patterns":         {user("+@all", "~team/x:lock* %RW~team/?:*", "&team/x:wake:*"), map[string]string{"locks": "", "queues": "&team/x:queue:*"}},
		"another prefix":       {user("+@all", "~perkey:*", "&*"), map[string]string{"locks": "~team/x:lock{}:*"}},
		"none":                 {user("-@all", "", ""), map[string]string{"locks that are waited for": "&team/x:wake:* +publish +pubsub|numsub +subscribe +ping"}},
	} {
		missing, err := ops.Lacks("team/x", c.user, categories)
		require.NoError(t, err)
		if c.want == nil {
			assert.Empty(t, missing, name)
		}
		for use, want := range c.want {
			assert.Equal(t, want, strings.Join(missing[use], " "), "%s: %s", name, use)
		}
	}
	for _, cannot := range []any{nil, "junk", []any{}, map[any]any{"commands": "+@all", "selectors": []any{"+get"}}} {
		_, err := ops.Lacks("perkey", cannot, nil)
		require.Error(t, err)
	}
}

// A primary is asked a few cheap things, and nothing that grows with its keys.
func TestExamine_CostsAHandfulOfCommands(t *testing.T) {
	t.Parallel()
	_, rdb := durableRedis(t)
	_, err := ops.ReadFacts(t.Context(), rdb, ops.ExamineOptions{}) // connects
	require.NoError(t, err)
	require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
	_, err = ops.ReadFacts(t.Context(), rdb, ops.ExamineOptions{})
	require.NoError(t, err)
	calls := map[string]int{}
	for field, value := range ops.ParseInfo(rdb.Info(t.Context(), "commandstats").Val()) {
		if command, ok := strings.CutPrefix(field, "cmdstat_"); ok {
			command, _, _ = strings.Cut(command, "|") // Redis 6.2 does not count subcommands apart
			count, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, err := strconv.Atoi(count)
			require.NoError(t, err)
			calls[command] += n
		}
	}
	for _, connects := range []string{"hello", "client", "ping"} {
		delete(calls, connects)
	}
	assert.Equal(t, map[string]int{
		"info": 1, "config": 2, "acl": 2, // RESETSTAT is one of them; beside the round trips, and
		"evalsha": 1, "zcount": 1, "zrevrangebyscore": 1, "zrange": 1, // an empty fleet and no queue
		"time": 4,
	}, calls)
}

// A record that lost its expiry is found, whether calls wait for its key or are refused, until ForceRelease frees it.
func TestExamine_ARecordWithoutAnExpiry(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rdb, recorder, o := env.Client(t), ops.NewRecorder(), ops.ExamineOptions{Prefix: env.Prefix}
	locker := newLocker(t, env, core.WithObserver(recorder.Locks(nil)))
	fences := map[string]int64{}
	for _, key := range []string{"waited for", "refused", "not wanted", "as it should be"} {
		lease, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		fences[key] = lease.Fence()
		_, err = lease.Detach(t.Context()) // and nobody resumes it
		require.NoError(t, err)
		if key != "as it should be" {
			require.NoError(t, rdb.Persist(t.Context(), env.Prefix+":lock{}:"+key).Err())
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer leave()
	calls.Go(func() { _, _ = locker.Acquire(ctx, "waited for") })
	calls.Go(func() { _, _ = locker.Acquire(ctx, "as it should be") })
	for range 3 {
		_, err := locker.TryAcquire(t.Context(), "refused")
		require.ErrorIs(t, err, core.ErrConflict)
	}
	startBeacon(t, rdb, recorder, locker)
	keys := func() (all []string) {
		for _, f := range examine(t, rdb, o) {
			if f.Kind == "endless" {
				all = append(all, f.Keys...)
			}
		}
		return all
	}
	redistest.Eventually(t, func() bool { return slices.Equal(keys(), []string{"waited for", "refused"}) }, "they are found")
	for key, fence := range fences {
		_, err := locker.ForceRelease(t.Context(), key, fence)
		require.NoError(t, err)
	}
	require.Empty(t, keys())
}

// Work that is parked for a key makes a hold worth telling, though no call waits for it.
func TestExamine_AHolderThatHangsWithParkedWork(t *testing.T) {
	t.Parallel()
	_, rdb := durableRedis(t)
	q := testbed.NewQueue(t, rdb, "ship")
	held := func(key string) {
		tell(t, rdb, "perkey", "p", 0, fmt.Sprintf(`,"host":"h","leases":[{"key":%q,"fence":1,"held":61000000,"ttl":15000000,"remaining":14000000}]`, key))
	}
	held("order:1")
	require.Empty(t, found(t, rdb, ops.ExamineOptions{}), "nobody wants it")
	for range 12 {
		testbed.Enqueue(t, q, delayqueue.Job{Key: "order:1"})
	}
	all := examine(t, rdb, ops.ExamineOptions{})
	require.Len(t, all, 1, "%v", all)
	assert.Equal(t, "long_holds", all[0].Kind)
	assert.Equal(t, []string{"order:1"}, all[0].Keys)
	assert.Contains(t, fmt.Sprint(all[0].Evidence), "messages queued after them: 10 or more")
	assert.Contains(t, fmt.Sprint(all[0].Evidence), "held by: h")
	held("order:2")
	require.Empty(t, found(t, rdb, ops.ExamineOptions{}), "the work is parked for another key")
}
