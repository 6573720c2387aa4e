package delayqueue

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// storesAll reports it if jobs of all kinds are mixed up that one call of the script stores.
func storesAll(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	const age = time.Hour
	q := hookedQueue(t, env, "q", hooks)
	known := enqueueJob(t, q, Job{ID: "known", Key: "k", MaxAge: 2 * age})
	claimed := claimTest(t, q, "ended.1", 1)[0]
	require.True(t, settleTest(t, claimed, outcome{end: store.Finished}))
	enqueueJob(t, q, Job{ID: "old", Key: "c", Coalesce: true})
	long := func(deadLetter string) []byte { return []byte(strings.Repeat(deadLetter, store.MaxInline+1)) }
	jobs := []Job{
		{ID: "plain", Name: "n", Payload: []byte("1"), MaxAge: age},
		{ID: "long 1", Key: "l", Payload: long("1"), MaxAge: age},
		{ID: "known", Key: "k", MaxAge: age},
		{ID: "keyed", Key: "k", Name: "name", Principal: "p", Payload: []byte("2"), MaxAge: age},
		{ID: "newer", Key: "c", Coalesce: true, MaxAge: age},
		{ID: "keyed too", Key: "k", Name: "name", Principal: "p", Payload: []byte("3"), MaxAge: age},
		{ID: "long 2", Principal: "p", Payload: long("2"), MaxAge: 3 * age},
		{ID: "later", Key: "k", Delay: time.Minute, MaxAge: age},
		{ID: "plain too", Name: "n", MaxAge: age},
	}
	for i := range jobs {
		jobs[i].ID = strings.ReplaceAll(jobs[i].ID, " ", "-")
	}
	stored, err := storeTogether(q.manifests.partitions[0], jobs...)
	if err != nil {
		return err
	}
	for i, job := range jobs {
		s, err := q.Status(t.Context(), job.ID)
		if err != nil {
			return violated("%s: %v", job.ID, err)
		}
		want := Status{ID: job.ID, Key: job.Key, Name: job.Name, Principal: job.Principal, State: StateQueued, EnqueuedAt: s.EnqueuedAt, ExpiresAt: s.EnqueuedAt.Add(job.MaxAge)}
		if job.ID == "known" {
			want.State, want.Attempts, want.ExpiresAt = StateDone, 1, known.ExpiresAt
		}
		if s != want || !stored[i].Expires.Equal(s.ExpiresAt) || stored[i].Now == (job.ID == "known") {
			return violated("%s: %+v, stored now: %v, until %v", job.ID, s, stored[i].Now, stored[i].Expires)
		}
		if payload, err := q.Payload(t.Context(), job.ID); stored[i].Now && (err != nil || !bytes.Equal(payload, job.Payload)) {
			return violated("%s: the payload is %.9q: %v", job.ID, payload, err)
		}
	}
	var due []string
	for _, c := range claimTest(t, q, "token.1", 64) {
		due = append(due, c.message.ID)
	}
	old := statusTest(t, q, "old")
	if got := len(due); old.SupersededBy != "newer" || got != 6 { // all but later, known and keyed-too
		return violated("old is replaced by %q, and %d are due: %s", old.SupersededBy, got, due)
	}
	const takes = 280 + (54+3*3)*5/4 // of bytes, a message with an id of three: its record has 54 before its texts
	return errors.Join(fills(t, env, "few", 3, hooks, WithMaxDepth(3)), fills(t, env, "small", 7000/takes, hooks, WithMaxPayload(1), WithMaxBytes(7000)))
}

// fills reports it if one call stores more or less than there is room for.
func fills(t *testing.T, env *redistest.Env, name string, room int, hooks []redis.Hook, opts ...Option) error {
	t.Helper()
	q := hookedQueue(t, env, name, hooks, opts...)
	jobs := make([]Job, store.BatchItems)
	for i := range jobs {
		jobs[i] = Job{ID: fmt.Sprintf("j%02d", i), MaxAge: time.Hour}
	}
	all, err := storeTogether(q.manifests.partitions[0], jobs...)
	if err != nil {
		return err
	}
	stored := 0
	for _, s := range all {
		if s.Now {
			stored++
		} else if s.Full != store.QueueFull {
			return violated("%s: a job is refused as %q", name, s.Full)
		}
	}
	if n := q.rdb.HLen(t.Context(), q.manifests.partitions[0].Keys[store.KeyMessages]).Val(); stored != room || int(n) != room {
		return violated("%s: %d are stored, and redis has %d, where there is room for %d", name, stored, n, room)
	}
	return nil
}

func TestEnqueue_JobsOfAllKindsTogether(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { require.NoError(t, storesAll(t, env)) })
}

func TestBatch_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	requireCaught(t, storesAll, []mutant{
		{"long payloads are mixed up", "enqueue", "PAYLOADS + body_at[id]", "PAYLOADS + 1"},
		{"all are stored as the first ones", "enqueue", "first = before + 1, last = before + many", "first = before + 1, last = before == 0 and n or 0"},
		{"answers are mixed up", "enqueue", "      replies[#replies + 1], replies[#replies + 2] = i, why\n", "      replies[#replies + 1], replies[#replies + 2] = 1, why\n"},
		{"there are more than may be", "enqueue", "all < max_depth and", ""},
		{"they take more than may be", "enqueue", "bytes + size <= room", "true"},
		{"bytes of the usual are not counted", "enqueue", "all + 1, bytes + size, stored", "all + 1, bytes, stored"},
		{"what takes more than the usual is left out", "enqueue", "if #others == 0 then", "if true then"},
	})
}

// storesOnce reports it if a job of many callers is stored twice, not at all, or before an earlier one of its caller, while
// replies are lost.
func storesOnce(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	const callers, each = 32, 20
	proxy := redistest.NewProxy(t, env.Addr)
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: 20, MaxRetryBackoff: time.Millisecond})
	for _, hook := range hooks {
		rdb.AddHook(hook)
	}
	q := of(New(rdb, "q", WithPrefix(env.Prefix)))(t)
	enqueueTest(t, q, "first", "")
	var lost atomic.Int64
	proxy.LoseReply(func(request []byte) bool {
		return bytes.Contains(bytes.ToLower(request), []byte("evalsha")) && rand.IntN(4) == 0 && lost.Add(1) > 0
	})
	var calls sync.WaitGroup
	var ids [callers][]string
	var failed atomic.Pointer[error]
	for c := range callers {
		calls.Go(func() {
			for range each {
				r, err := q.Enqueue(t.Context(), Job{Key: fmt.Sprint("k", c), Payload: []byte("work")})
				if err != nil {
					failed.Store(&err)
					return
				}
				ids[c] = append(ids[c], r.ID)
			}
		})
	}
	calls.Wait()
	proxy.LoseReply(nil)
	require.Positive(t, lost.Load())
	if err := failed.Load(); err != nil {
		return *err
	}
	p := q.manifests.partitions[0]
	stats := statsTest(t, q)
	if n := rdb.HLen(t.Context(), p.Keys[store.KeyMessages]).Val(); n != callers*each+1 || stats.Totals.Enqueued != n {
		return violated("%d messages are stored, and %d are counted", n, stats.Totals.Enqueued)
	}
	places := map[string][]string{}
	for _, place := range rdb.ZRange(t.Context(), p.Keys[store.KeyFIFOs], 0, -1).Val() {
		id, key := store.SplitPlace(place)
		places[key] = append(places[key], id)
	}
	for c := range callers {
		if got := places[fmt.Sprint("k", c)]; !slices.Equal(ids[c], got) {
			return violated("k%d: the FIFO is %v of %v", c, got, ids[c])
		}
	}
	return nil
}

func TestEnqueue_ManyCallersLoseReplies(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { require.NoError(t, storesOnce(t, env)) })
}

func TestMutantsOfLostRepliesAreCaught(t *testing.T) {
	t.Parallel()
	requireCaught(t, storesOnce, []mutant{
		{"what was stored is not known", "enqueue", "known[i] = known[i] and known[i]:sub(33, 45)", "known[i] = false"},
		{"of a call only the first is known", "enqueue", "known[i] = known[i] and", "known[i] = i == 1 and known[i] and"},
	})
}
