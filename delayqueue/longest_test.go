package delayqueue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// cost is what a script comes to: how many commands it calls, and how long Redis computes for it. That is less than the time which
// passes: on a busy machine others have the processor meanwhile.
type cost struct {
	calls int
	took  time.Duration
}

// scriptTimes is a hook that measures the most that each script has cost.
type scriptTimes struct {
	rdb     *redis.Client // without the hook
	longest map[string]cost
}

func (s *scriptTimes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scriptTimes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		for name, hash := range ScriptHashes {
			if redistest.IsScript(cmd) && cmd.Args()[1] == hash {
				s.measure(ctx, name, cmd)
				return cmd.Err()
			}
		}
		return next(ctx, cmd)
	}
}

func (s *scriptTimes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// measure runs a script between two looks at the clock of Redis's thread, with nothing else between them.
func (s *scriptTimes) measure(ctx context.Context, name string, cmd redis.Cmder) {
	tx := s.rdb.TxPipeline()
	callsBefore, before := tx.Info(ctx, "commandstats"), tx.Info(ctx, "cpu")
	_ = tx.Process(ctx, cmd)
	after, callsAfter := tx.Info(ctx, "cpu"), tx.Info(ctx, "commandstats")
	if _, err := tx.Exec(ctx); err == nil {
		was := s.longest[name]
		s.longest[name] = cost{
			max(was.calls, called(callsAfter.Val())-called(callsBefore.Val())-4), // the script itself, and INFO
			max(was.took, computed(after.Val())-computed(before.Val())),
		}
	}
}

// called is how many commands Redis has run, by its INFO, those of scripts included.
func called(info string) (n int) {
	for line := range strings.Lines(info) {
		if _, calls, ok := strings.Cut(line, ":calls="); ok {
			calls, _, _ = strings.Cut(calls, ",")
			one, _ := strconv.Atoi(calls)
			n += one
		}
	}
	return n
}

// computed is how long Redis has computed, by its INFO: its main thread, which is the one that scripts block, or before Redis 7 all
// of its threads.
func computed(info string) (took time.Duration) {
	thread := ""
	if strings.Contains(info, "_main_thread:") {
		thread = "_main_thread"
	}
	for line := range strings.Lines(info) {
		if field, value, _ := strings.Cut(strings.TrimSpace(line), ":"); field == "used_cpu_sys"+thread || field == "used_cpu_user"+thread {
			seconds, _ := strconv.ParseFloat(value, 64)
			took += time.Duration(seconds * float64(time.Second))
		}
	}
	return took
}

// longQueue is a partition with much in it, and what makes a script long.
type longQueue struct {
	*Queue
	t *testing.T
	p *store.Partition
	n int // names
}

func (q *longQueue) name(what string) string {
	q.n++
	return fmt.Sprint(what, q.n)
}

// fill enqueues n messages of a size, with these keys.
func (q *longQueue) fill(n, size int, key func(i int) string) (ids []string) {
	q.t.Helper()
	for at := 0; at < n; at += store.BatchItems {
		var batch []Job
		for i := at; i < min(n, at+store.BatchItems); i++ {
			j := Job{ID: q.name("id"), Key: key(i), Name: "name", Payload: make([]byte, size), MaxAge: time.Hour}
			ids = append(ids, j.ID)
			batch = append(batch, j)
		}
		for some := range slices.Chunk(batch, max(1, min(len(batch), (1<<20)/max(1, size)))) {
			require.NoError(q.t, errOf(storeTogether(q.p, some...)))
		}
	}
	return ids
}

func none(int) string { return "" }

// claim claims n messages, in as many calls as that takes.
func (q *longQueue) claim(n int) (claims []*claim) {
	for range n {
		claims = append(claims, claimTest(q.t, q.Queue, q.name("claim.")+".1", min(store.BatchItems, n-len(claims)))...)
		if len(claims) >= n {
			break
		}
	}
	return claims
}

// settle settles claims together, with the next one for each.
func (q *longQueue) settle(claims []*claim, v outcome) {
	q.t.Helper()
	var batch []*store.Settlement
	for _, c := range claims {
		v.next = q.name("next")
		batch = append(batch, c.end(v, time.Minute))
	}
	for range 2 { // the second as after a lost reply
		q.p.SettleTogether(batch)
		for _, s := range batch {
			require.NoError(q.t, s.Err)
		}
	}
}

// old makes messages too old.
func (q *longQueue) old(ids []string) {
	for _, id := range ids {
		require.NoError(q.t, ageRecord(q.Queue, id))
	}
}

// longLine is how many messages wait for one key throughout, and longBucket how many ended in one bucket: enough to be large.
var longLine, longBucket = 11_000, 11_000

func newLongQueue(t *testing.T, rdb redis.UniversalClient, opts ...Option) *longQueue {
	t.Helper()
	q := of(New(rdb, "q", append([]Option{WithMaxDepth(1 << 20), WithMaxDepthPerKey(1 << 20), WithMaxBytes(1 << 33)}, opts...)...))(t)
	return &longQueue{Queue: q, t: t, p: q.manifests.partitions[0]}
}

// keysOf are as many keys as a call takes messages.
func keysOf(prefix string) func(int) string {
	return func(i int) string { return fmt.Sprint(prefix, i%store.BatchItems) }
}

type longLoad struct {
	name string
	run  func(q *longQueue)
}

// longestLoads make each script work as long as it can.
var longestLoads = []longLoad{
	{"64 messages of 16 KiB, 64 keys: enqueued, claimed, settled with results, and again", func(q *longQueue) {
		q.fill(store.BatchItems*2, 16<<10, keysOf(q.name("k")))
		q.settle(q.claim(store.BatchItems), outcome{end: store.Finished, ofKey: true, result: make([]byte, 16<<10)})
	}},
	{"64 of 64 KiB: claimed, settled with what is due, and again; and as many are cancelled", func(q *longQueue) { largeLoad(q, 64<<10) }},
	{"64 attempts fail, and become dead letters", func(q *longQueue) {
		q.fill(store.BatchItems, 64, keysOf(q.name("k")))
		q.settle(q.claim(store.BatchItems), outcome{end: store.Failed, err: errTooOld})
		q.settle(q.claim(store.BatchItems), outcome{end: store.Died, err: errTooOld})
	}},
	{"64 that are due are too old, with others behind them", func(q *longQueue) {
		q.old(q.fill(store.BatchItems*2, 64, keysOf(q.name("k"))))
		for range 4 {
			claimTest(q.t, q.Queue, q.name("late"), store.BatchItems)
		}
	}},
	{"64 saves replace one another, and 64 others", func(q *longQueue) {
		key := keysOf(q.name("k"))
		for _, of := range []func(int) string{key, key, func(int) string { return "line" }} {
			var batch []Job
			for i := range store.BatchItems {
				j := Job{ID: q.name("id"), Key: of(i), Payload: make([]byte, 8<<10), Coalesce: true, QuietPeriod: time.Minute, MaxDelay: 2 * time.Minute, MaxAge: time.Hour}
				batch = append(batch, j)
			}
			_, _ = storeTogether(q.p, batch...)
		}
	}},
	{"256 that are delayed join behind others of 64 keys, before 64 without a key", func(q *longQueue) {
		key := keysOf(q.name("k"))
		q.fill(store.BatchItems, 64, key)
		q.claim(store.BatchItems)
		for range 5 {
			var batch []Job
			for i := range store.BatchItems {
				j := Job{ID: q.name("id"), Key: key(i), Delay: time.Millisecond, MaxAge: time.Hour}
				batch = append(batch, j)
			}
			_, _ = storeTogether(q.p, batch...)
		}
		time.Sleep(5 * time.Millisecond)
		q.fill(store.BatchItems, 64, none)
		require.Len(q.t, claimTest(q.t, q.Queue, q.name("claim"), store.BatchItems), store.BatchItems)
	}},
	{"64 die, and no dead letter has room", func(q *longQueue) {
		q.fill(store.BatchItems, 64, keysOf(q.name("k")))
		claims := q.claim(store.BatchItems)
		tight := newLongQueue(q.t, q.rdb, WithMaxPayload(1), WithMaxBytes(10_000))
		for _, c := range claims {
			c.partition = tight.p
		}
		tight.n = q.n
		tight.settle(claims, outcome{end: store.Died, err: errTooOld})
	}},
	{"64 are refused whose keys are full of what is too old", func(q *longQueue) {
		prefix := q.name("k")
		q.old(q.fill(store.BatchItems*3, 64, keysOf(prefix)))
		full := newLongQueue(q.t, q.rdb, WithMaxDepthPerKey(3))
		var batch []Job
		for i := range store.BatchItems {
			batch = append(batch, Job{ID: q.name("id"), Key: keysOf(prefix)(i), MaxAge: time.Hour})
		}
		_, _ = storeTogether(full.p, batch...)
	}},
	{"claims end, and are extended", func(q *longQueue) {
		q.fill(2*store.BatchItems, 64, none)
		claims := q.claim(2 * store.BatchItems)
		_, err := q.p.Extend(q.t.Context(), q.rdb, time.Millisecond, false, storedOf(claims)...)
		require.NoError(q.t, err)
		time.Sleep(5 * time.Millisecond)
		for range 8 {
			claimTest(q.t, q.Queue, q.name("late"), 0)
		}
	}},
	{"64 keys are freed", func(q *longQueue) {
		names := make([]string, store.BatchItems)
		for i := range names {
			names[i] = q.name("k")
		}
		q.fill(store.BatchItems, 64, func(i int) string { return names[i] })
		q.settle(q.claim(store.BatchItems), outcome{end: store.KeyHeld, delay: time.Hour})
		_, err := q.p.Wake(q.t.Context(), names, true)
		require.NoError(q.t, err)
	}},
	{"a bucket with thousands is large, and then is needed no more", func(q *longQueue) {
		bucket := q.p.Keys[store.KeyEnded+store.Buckets+2] // of callers: the jobs have ids
		for range longBucket / 1000 {
			args := make([]any, 0, 2000)
			for range 1000 {
				args = append(args, q.name("ended"), "d------")
			}
			require.NoError(q.t, q.rdb.HSet(q.t.Context(), bucket, args...).Err())
		}
		require.NoError(q.t, q.rdb.Expire(q.t.Context(), bucket, time.Hour).Err())
		counts := q.p.Keys[store.KeyCounts]
		now := time.Now()
		require.NoError(q.t, q.rdb.HSet(q.t.Context(), counts, "given", fmt.Sprint("2 ", now.UnixMilli(), " 0 0 0 0 ", now.Add(time.Hour).UnixMilli(), " 1 0 0")).Err())
		q.fill(1, 64, none)
		q.settle(q.claim(1), outcome{end: store.Finished})
		require.EqualValues(q.t, -1, q.rdb.PTTL(q.t.Context(), bucket).Val(), "what is large does not expire")
		require.NoError(q.t, q.rdb.HSet(q.t.Context(), counts, "given", "2 1 0 0 0 0 1 1 0 0").Err())
		claimTest(q.t, q.Queue, q.name("needless"), 0)
		require.Zero(q.t, q.rdb.Exists(q.t.Context(), bucket).Val())
	}},
	{"100 of a long line are cancelled, 100 dead letters redriven and purged, 1,000 listed", func(q *longQueue) {
		places := q.rdb.ZRangeArgs(q.t.Context(), redis.ZRangeArgs{
			Key: q.p.Keys[store.KeyFIFOs], Start: "[line\n", Stop: "(line\n~", ByLex: true, Offset: int64(longLine / 2), Count: 100,
		}).Val()
		ids := make([]string, len(places))
		for i, place := range places {
			ids[i], _ = store.SplitPlace(place)
		}
		_, err := q.p.Cancel(q.t.Context(), ids...)
		require.NoError(q.t, err)
		var dead []store.Letter
		q.fill(scanBatch, 16<<10, none)
		for _, c := range q.claim(scanBatch) {
			dead = append(dead, store.Letter{ID: c.message.ID})
			q.settle([]*claim{c}, outcome{end: store.Died, err: errTooOld})
		}
		_, err = q.p.Redrive(q.t.Context(), time.Hour, dead[:50]...)
		require.NoError(q.t, err)
		_, err = q.p.Purge(q.t.Context(), dead...)
		require.NoError(q.t, err)
		_, cursor, err := q.List(q.t.Context(), StateQueued, "", maxPage)
		require.NoError(q.t, err)
		_, _, err = q.List(q.t.Context(), StateQueued, cursor, maxPage)
		require.NoError(q.t, err)
	}},
}

// largeLoad is one of large messages. The larger they are, the fewer go together: a matter of time alone.
func largeLoad(q *longQueue, size int) {
	q.fill(store.BatchItems*2, size, none)
	q.settle(q.claim(store.BatchItems), outcome{end: store.Finished})
	require.NoError(q.t, errOf(q.p.Cancel(q.t.Context(), q.fill(store.BatchItems, size, none)...)))
}

// mostCalls is the bound on how many commands a script calls: up to 20 for each of the 100 messages that it handles at most, however
// many there are. How long Redis computes for them is a matter of the machine: see TestSoak_Scripts.
const mostCalls = 2000

// No script does much, whatever it is asked for and whatever is there.
func TestScripts_Longest(t *testing.T) {
	runLongest(t, func(t *testing.T, again func() map[string]cost) {
		again() // it loads the scripts
		costs := again()
		require.NotEmpty(t, costs)
		for name, c := range costs {
			t.Logf("%s: %d calls, %s", name, c.calls, c.took)
			require.LessOrEqual(t, c.calls, mostCalls, name)
		}
	})
}

// runLongest has judge run each of the longest loads, as often as it likes.
func runLongest(t *testing.T, judge func(t *testing.T, again func() map[string]cost)) {
	t.Helper()
	s := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: s.Addr, ReadTimeout: -1, WriteTimeout: -1, ReadBufferSize: 1 << 20, WriteBufferSize: 1 << 20}) // for 64 MiB
	require.Positive(t, computed(rdb.Info(t.Context(), "cpu").Val()))
	times := &scriptTimes{rdb: redistest.Client(t, &redis.Options{Addr: s.Addr}), longest: map[string]cost{}}
	rdb.AddHook(times)
	q := newLongQueue(t, rdb)
	q.fill(longLine, 64, func(int) string { return "line" })
	for _, name := range []int{store.KeyMessages, store.KeyFIFOs, store.KeyWaiting} {
		require.EqualValues(t, -1, rdb.PTTL(t.Context(), q.p.Keys[name]).Val(), "what is large does not expire")
	}
	var receipts []any
	for i := range 10_000 {
		receipts = append(receipts, fmt.Sprint("old", i), "1700000000000 1 ")
	}
	require.NoError(t, rdb.HSet(t.Context(), q.p.Keys[store.KeyReceipts], receipts...).Err())
	for _, c := range longestLoads {
		t.Run(c.name, func(t *testing.T) {
			q.t = t
			judge(t, func() map[string]cost {
				times.longest = map[string]cost{}
				c.run(q)
				require.NoError(t, rdb.Del(t.Context(), q.p.Keys[store.KeyWaiting], q.p.Keys[store.KeyRunning]).Err()) // the next begins anew
				return times.longest
			})
		})
	}
}

// Who has most dead letters is not looked for anew for each that is forgotten.
func TestScripts_WhoHasMostIsReadOnce(t *testing.T) {
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	q := newLongQueue(t, rdb, WithMaxBytes(512<<10), WithMaxPayload(16<<10))
	for range 8 {
		for i := range store.BatchItems {
			enqueueJob(t, q.Queue, Job{Name: fmt.Sprintf("%0200d", i), Principal: q.name("p"), Payload: make([]byte, 300)})
		}
		claims := q.claim(store.BatchItems)
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		q.settle(claims, outcome{end: store.Died, err: errTooOld})
	}
	_, calls, _ := strings.Cut(rdb.Info(t.Context(), "commandstats").Val(), "cmdstat_zrevrange:calls=")
	n := of(strconv.Atoi(calls[:strings.Index(calls, ",")]))(t)
	require.LessOrEqual(t, n, 2)
}

// Delayed messages of some keys that are due keep no message of no key, or of another, from the workers; few claims put them into their
// keys' order. Each key's first alone is claimed, and the others run in its turn.
func TestDue_DelayedMessagesOfSomeKeysHoldUpNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const keys, n, slots = 4, 2048, 4
		q := testQueue(t, env)
		p := q.manifests.partitions[0]
		for at := 0; at < n; at += store.BatchItems {
			var batch []Job
			for i := at; i < at+store.BatchItems; i++ {
				batch = append(batch, Job{ID: fmt.Sprintf("m%05d", i), Key: fmt.Sprint("k", i%keys), Delay: time.Millisecond, MaxAge: time.Hour})
			}
			require.NoError(t, errOf(storeTogether(p, batch...)))
		}
		redistest.Eventually(t, func() bool {
			s, err := q.Stats(t.Context())
			return err == nil && s.Due == n
		}, "not all are due")
		enqueueTest(t, q, "of-none", "") // after the others also within one millisecond
		enqueueTest(t, q, "of-another", "another")
		claims := 0
		claim := func() (ids []string) {
			b := of(p.Claim(t.Context(), fmt.Sprint("token.", claims+1), time.Hour, slots))(t)
			claims++
			for _, m := range b.Messages {
				ids = append(ids, m.ID)
			}
			return ids
		}
		require.Equal(t, []string{"m00000", "m00001", "m00002", "m00003"}, claim())
		require.ElementsMatch(t, []string{"of-none", "of-another"}, claim())
		for due := int64(1); due > 0; {
			require.Empty(t, claim())
			s := statsTest(t, q)
			due = s.Due
		}
		require.LessOrEqual(t, claims, 3+n/256, "claims until all have joined")

		places := of(env.Client(t).ZRange(t.Context(), p.Base+":f", 0, -1).Result())(t)
		require.Len(t, places, n+1)
		for i, place := range places[1:] { // by key, and in a key by when they were enqueued
			require.Regexp(t, fmt.Sprintf(`^k%d\n\d{16}m%05d$`, i/(n/keys), i%(n/keys)*keys+i/(n/keys)), place)
		}
	})
}

// A claim asks Redis for what it takes, however many keys are due.
func TestDue_AClaimLooksNoFurtherThanItTakes(t *testing.T) {
	s := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: s.Addr})
	times := &scriptTimes{rdb: redistest.Client(t, &redis.Options{Addr: s.Addr}), longest: map[string]cost{}}
	rdb.AddHook(times)
	q := newLongQueue(t, rdb)
	calls := func(backlog int) int {
		q.fill(backlog, 1, func(int) string { return q.name("k") })
		q.claim(1) // loads the script, once
		times.longest = map[string]cost{}
		require.Len(t, q.claim(1), 1)
		return times.longest["claim"].calls
	}
	few := calls(2)
	require.Positive(t, few)
	require.LessOrEqual(t, calls(1000), few+10)
}
