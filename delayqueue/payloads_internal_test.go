package delayqueue

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// longTest is a queue with messages whose payload is too long for a record.
type longTest struct {
	*Queue
	t *testing.T
	p *store.Partition
}

func newLongTest(t *testing.T, env *redistest.Env, hooks []redis.Hook, opts ...Option) *longTest {
	t.Helper()
	q := hookedQueue(t, env, "q", hooks, opts...)
	return &longTest{q, t, q.manifests.partitions[0]}
}

func (q *longTest) add(job Job) {
	q.t.Helper()
	job.Payload = make([]byte, store.MaxInline+1)
	require.True(q.t, enqueueJob(q.t, q.Queue, job).Stored)
}

// left is for how long the payload of a message lives: less than zero without one.
func (q *longTest) left(id string) time.Duration {
	q.t.Helper()
	left := of(q.rdb.PTTL(q.t.Context(), q.p.PayloadKey(id)).Result())(q.t)
	return left
}

// livesLong reports it if a payload is gone before its message, or lives on for long.
func livesLong(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	const day = 24 * time.Hour
	q := newLongTest(t, env, hooks, WithDeadRetention(9*day))
	q.add(Job{ID: "id", MaxAge: day})
	if left := q.left("id"); left < day+59*time.Minute || left > 2*day {
		return violated("%s are left of what may wait for a day", left)
	}
	b, err := q.p.Claim(t.Context(), "token.1", 2*day, 1)
	require.NoError(t, err)
	if left := q.left("id"); left < 2*day {
		return violated("%s are left of what is claimed for 2 days", left)
	}
	c := claimOf(q.Queue, b.Messages[0], "token.1")
	_, err = q.p.Extend(t.Context(), q.rdb, 3*day, false, c.stored) // its handler takes longer than it may wait
	require.NoError(t, err)
	if left := q.left("id"); left < 3*day {
		return violated("%s are left of what is claimed for 3 days", left)
	}
	require.True(t, settleTest(t, c, outcome{end: store.Died, err: errTooOld}))
	if left := q.left("id"); left < 9*day-time.Minute {
		return violated("%s are left of what is dead for 9 days", left)
	}
	payload := of(q.Payload(t.Context(), "id"))(t)
	require.Len(t, payload, store.MaxInline+1)
	require.NoError(t, q.Redrive(t.Context(), "id", 20*day))
	if left := q.left("id"); left < 20*day {
		return violated("%s are left of what may wait for 20 days", left)
	}
	freed := []string{q.p.Keys[store.KeyMessages], q.p.PayloadKey("id"), q.p.PayloadKey("other")}
	require.NoError(t, store.Scripts["free"].Run(t.Context(), q.rdb, freed, "id", "other").Err()) // as if that came late, of an older message with the id
	if q.left("id") < 0 {
		return violated("the payload of a message that is there is freed")
	}
	c = claimTest(t, q.Queue, "token.2", 1)[0]
	require.Len(t, c.message.Payload, store.MaxInline+1)
	require.True(t, settleTest(t, c, outcome{end: store.Finished}))
	require.Negative(t, q.left("id"))
	return nil
}

// A payload in a key of its own lives for as long as its message may need it, and expires if nobody frees it.
func TestLongPayload_LivesAsLongAsItsMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { require.NoError(t, livesLong(t, env)) })
}

func TestPayload_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	requireCaught(t, livesLong, []mutant{
		{"a long payload expires with the age alone", "enqueue", "'PX', text(how.age + SLACK)", "'PX', text(how.age)"},
		{"a long payload never expires", "enqueue", ", 'PX', text(how.age + SLACK))", ")"},
		{"a claim that is longer than its age has lost its payload", "payloads", "    redis.call('PEXPIRE', key, needed)\n", ""},
		{"a claim that goes on has lost its payload", "extend", "      keep(bodies[id], lease + SLACK, 0)\n", ""},
		{"a dead letter's payload expires", "settle", "    keep(bodies[id], dead_retention, 0)\n", ""},
		{"a redriven payload expires", "redrive", "    keep(bodies[id], age + SLACK, 0)\n", ""},
		{"a payload is freed that is needed", "free", "if not rec then", "if true then"},
	})
}

// Payloads that cannot be read after their claim cost it no attempt: the same messages come again.
func TestLongPayload_ThatCannotBeReadIsReadLater(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		q := newLongTest(t, env, nil)
		var fails atomic.Int64
		q.rdb.(*redis.Client).AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if args := cmd.Args(); redistest.IsScript(cmd) && args[1] == any(store.Scripts["payloads"].Hash()) && fails.Add(-1) >= 0 {
				args[0] = "no-such-command"
			}
		}))
		q.add(Job{ID: "first", Key: "k", MaxAge: time.Hour})
		q.add(Job{ID: "second", Key: "k", MaxAge: time.Hour})
		fails.Store(1)
		require.Error(t, errOf(q.p.Claim(t.Context(), "token.1", time.Minute, 1)))
		c := claimTest(t, q.Queue, "token.1", 1)[0]
		require.Equal(t, []any{"first", 1, store.MaxInline + 1}, []any{c.message.ID, c.message.Attempt, len(c.message.Payload)})

		fails.Store(1)
		next := outcome{end: store.Finished, next: "token.2", ofKey: true}
		require.Error(t, errOf(settleOnce(c, next)))
		s := settled(t, c, next)
		require.True(t, s.Held)
		require.Equal(t, []any{"second", 1, store.MaxInline + 1}, []any{s.Claimed.ID, s.Claimed.Attempts, len(s.Claimed.Payload)})
	})
}

// The records of a partition are one key of Redis, which moves in one step.
func TestPayloads_LeaveTheRecordsOfAFullPartition(t *testing.T) {
	const size, messages = 2700, 2000
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		q := newLongTest(t, env, nil)
		payload := func(i int) []byte { return []byte(strings.Repeat(fmt.Sprint(i%10), size)) }
		for at := 0; at < messages; at += store.BatchItems {
			batch := make([]Job, store.BatchItems)
			for i := range batch {
				batch[i] = Job{ID: fmt.Sprint(at + i), Payload: payload(i), MaxAge: time.Hour}
			}
			require.NoError(t, errOf(storeTogether(q.p, batch...)))
		}
		records := 0
		for _, rec := range q.rdb.HVals(t.Context(), q.p.Keys[store.KeyMessages]).Val() {
			records += len(rec)
		}
		require.Greater(t, records, 1<<20)
		require.Less(t, records, 2<<20+200<<10)
		other := testQueue(t, env) // another process's, which has stored something
		enqueueTest(t, other, "other", "")
		require.Equal(t, store.MaxInlineFull, other.manifests.partitions[0].Inline())
		for _, i := range []int{0, messages - 1} {
			stored := of(q.Payload(t.Context(), fmt.Sprint(i)))(t)
			require.Equal(t, payload(i%store.BatchItems), stored)
			require.Equal(t, i > 0, q.left(fmt.Sprint(i)) > 0, i)
		}
	})
}
