package delayqueue

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What is counted is what Redis uses, whatever is long: keys, ids, principals, causes. It is long: one story for each row.
func TestMemory_BytesCountedAreBytesUsed(t *testing.T) {
	t.Parallel()
	const messages = 260 // just above a power of two: tables are at their emptiest
	server := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
	used := func() (total int64) { // by all keys, and not by what Redis has besides
		pipe := rdb.Pipeline()
		var sizes []*redis.IntCmd
		for _, key := range redistest.Keys(t, rdb, "") {
			sizes = append(sizes, pipe.MemoryUsage(t.Context(), key, 0))
		}
		require.NoError(t, errOf(pipe.Exec(t.Context())))
		for _, size := range sizes {
			total += size.Val()
		}
		return total
	}
	for i, c := range []struct {
		name                string
		key, id, principal  int
		coalesces, hot, dly bool
		cause, payload      int
		last                []store.End // Died, unless it is set
	}{
		{name: "no key", cause: 10},
		{name: "no key, long ids", id: 128, cause: 4 << 10},
		{name: "key of 10", key: 10, cause: 4 << 10},
		{name: "key of 512", key: 512, cause: 100},
		{name: "key of 10, coalesced", key: 10, coalesces: true, cause: 1000},
		{name: "all is long", key: 512, id: 128, principal: 256, coalesces: true, cause: 4 << 10},
		{name: "principals", key: 20, principal: 100},
		{name: "long payloads", payload: store.MaxInline + 1, id: 128},
		{name: "one key", key: 10, hot: true},
		{name: "one key, of a principal", key: 7, principal: 13, hot: true, payload: -1},
		{name: "what has ended", last: []store.End{store.Finished}},
		{name: "one key of 512, delayed", key: 512, hot: true, dly: true},
	} {
		q, err := New(rdb, fmt.Sprint("q", i), WithMaxBytes(1<<30), WithMaxBytesPerKey(1<<30), WithMaxDepthPerKey(messages))
		require.NoError(t, err)
		p := q.manifests.partitions[0]
		enqueueJob(t, q, Job{})
		_, err = settleOnce(claimTest(t, q, "first.1", 1)[0], outcome{end: store.Finished}) // the scripts take memory too
		require.NoError(t, err)
		counted := func() int64 { return statsTest(t, q).Bytes }
		before, at := used(), counted()
		check := func(what string) {
			took, count := used()-before, counted()-at
			t.Logf("%s, %s: %d bytes each, counted %d: %.2f", c.name, what, took/messages, count/messages, float64(took)/float64(count))
			assert.LessOrEqual(t, float64(took), 1.1*float64(count), "%s, %s", c.name, what)
			assert.LessOrEqual(t, count, 3*took, "%s, %s", c.name, what)
		}
		text := func(size, n int) string { return fmt.Sprintf("%0*d", size, n)[:size] }
		var batch []Job
		for n := range messages {
			j := Job{ID: text(cmp.Or(c.id, 32), n), Key: text(c.key, n), Principal: text(c.principal, n), Coalesce: c.coalesces, Payload: make([]byte, max(0, cmp.Or(c.payload, 64))), MaxAge: time.Hour}
			if c.hot {
				j.Key, j.Principal = text(c.key, 0), text(c.principal, 0)
			}
			if c.dly {
				j.Delay = time.Minute
			}
			batch = append(batch, j)
		}
		for some := range slices.Chunk(batch, store.BatchItems) {
			_, err := storeTogether(p, some...)
			require.NoError(t, err)
		}
		check("queued")
		if c.hot {
			continue
		}
		turn := 0
		if c.last == nil {
			c.last = []store.End{store.Died}
		}
		for _, end := range append([]store.End{store.Conflicted, store.Failed}, c.last...) {
			all := []redis.Z{{Score: 1, Member: "none"}}
			for {
				turn++
				claims := claimTest(t, q, fmt.Sprint("a-token-like-that-of-a-worker.", turn), store.BatchItems)
				if len(claims) == 0 {
					break
				}
				var batch []*store.Settlement
				for _, claim := range claims {
					batch = append(batch, claim.end(outcome{end: end, err: errors.New(strings.Repeat("x", max(1, c.cause))), delay: time.Minute}, time.Minute))
				}
				p.SettleTogether(batch)
			}
			require.Zero(t, rdb.ZCard(t.Context(), p.Keys[store.KeyRunning]).Val())
			check(fmt.Sprint("outcome ", outcomes[end]))
			for _, member := range rdb.ZRange(t.Context(), p.Keys[store.KeyWaiting], 0, -1).Val() { // their time has come
				all = append(all, redis.Z{Score: 1, Member: member})
			}
			require.NoError(t, rdb.ZAddXX(t.Context(), p.Keys[store.KeyWaiting], all...).Err())
		}
	}
}

// A full partition keeps no causes of attempts that failed: they would take ten times as much.
func TestMemory_CausesAreKeptWhileThereIsRoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const most = 100_000
		q := testQueue(t, env, WithMaxBytes(most), WithMaxPayload(1))
		var ids []string
		for {
			ticket, err := q.Enqueue(t.Context(), Job{})
			if err != nil {
				require.ErrorIs(t, err, ErrQueueFull)
				break
			}
			ids = append(ids, ticket.ID)
		}
		fails := func(turn, n int) (kept int) {
			for _, c := range claimTest(t, q, fmt.Sprint("token.", turn), n) {
				settled(t, c, outcome{end: store.Failed, err: errors.New(strings.Repeat("why", 1000)), delay: time.Minute})
				s := statusTest(t, q, c.message.ID)
				require.Equal(t, 1, s.Attempts)
				if s.Cause != "" {
					require.Len(t, s.Cause, 3000)
					kept++
				}
			}
			return kept
		}
		s := statsTest(t, q)
		require.LessOrEqual(t, fails(1, 10), int(most-s.Bytes)/3000)
		for _, id := range ids[len(ids)/2:] {
			require.NoError(t, q.Cancel(t.Context(), id))
		}
		require.Equal(t, 2, fails(2, 2), "there is room again")
		fails(3, len(ids))
		s = statsTest(t, q)
		require.LessOrEqual(t, s.Bytes, int64(most*3/2), "and what was cancelled")
	})
}

// Keys that have no note of it live no less long than what they hold, which is there since before.
func TestLifetime_ThatWasLostIsNotShortened(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, others := range []int{1, 5} { // so many are large
			own := *env
			own.Prefix = fmt.Sprint(env.Prefix, others)
			q := hookedQueue(t, &own, "q", []redis.Hook{smaller(t, sources())})
			enqueue := func(id string, age time.Duration) {
				enqueueJob(t, q, Job{ID: id, Key: "key " + id, MaxAge: age})
			}
			p := q.manifests.partitions[0]
			enqueue("longest", 30*24*time.Hour)
			for i := range others {
				enqueue(fmt.Sprint(i), time.Hour)
			}
			require.NoError(t, q.rdb.HDel(t.Context(), p.Keys[store.KeyCounts], "till").Err())
			for i := range others {
				require.NoError(t, q.Cancel(t.Context(), fmt.Sprint(i)))
			}
			for _, c := range claimTest(t, q, "token.1", 5) {
				settled(t, c, outcome{end: store.Failed, delay: time.Hour})
			}
			enqueue("last", time.Hour)
			for _, key := range p.Keys[:store.KeyResults] {
				if left := q.rdb.PTTL(t.Context(), key).Val(); left != -2 {
					require.Greater(t, left, 30*24*time.Hour-time.Minute, "%s, beside %d", key, others)
				}
			}
			require.Positive(t, q.rdb.PTTL(t.Context(), p.Keys[store.KeyAttempts]).Val())
		}
	})
}

// What takes less than half of all bytes is remembered for the whole retention, whenever how much of it ended.
func TestBuckets_WhatEndedIsRememberedWhileThereIsRoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { require.NoError(t, remembers(t, env)) })
}

// remembers ends messages at random times, and returns what was forgotten too early.
func remembers(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	const retention, size, room = time.Hour, 4 << 10, 256 << 10
	q := hookedQueue(t, env, fmt.Sprint("q", rand.Uint32()), hooks, WithRetention(retention), WithMaxBytes(2*room), WithMaxPayload(1))
	type past struct {
		id  string
		ago time.Duration
	}
	var all []past
	steps := 100
	if !env.Real { // it is slow
		steps = 25
	}
	for n := range steps {
		d := rand.N(retention / 3)
		require.NoError(t, q.PassEnded(d))
		for i := range all {
			all[i].ago += d
		}
		all = slices.DeleteFunc(all, func(p past) bool { return p.ago > 2*retention }) // some take bytes for as long again
		for i := rand.IntN(20); i > 0 && (len(all)+1)*(size*5/4+1000) < room; i-- {
			ticket := enqueueJob(t, q, Job{})
			c := claimTest(t, q, fmt.Sprint("token", n, "-", i), 1)
			require.True(t, settleTest(t, c[0], outcome{end: store.Finished, result: make([]byte, size)}))
			all = append(all, past{id: ticket.ID})
		}
		for _, p := range all {
			if p.ago > retention-time.Minute { // the test takes time too
				continue
			}
			if _, err := q.Result(t.Context(), p.id); err != nil {
				return violated("%s ago, of %d: %v", p.ago, len(all), err)
			}
		}
	}
	return nil
}
