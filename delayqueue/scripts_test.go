package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// testQueue is a queue of tests.
func testQueue(t *testing.T, env *redistest.Env, opts ...Option) *Queue {
	t.Helper()
	return hookedQueue(t, env, "q", nil, opts...)
}

// hookedQueue is a queue whose client has these hooks.
func hookedQueue(t *testing.T, env *redistest.Env, name string, hooks []redis.Hook, opts ...Option) *Queue {
	t.Helper()
	rdb := env.Client(t)
	for _, hook := range hooks {
		rdb.AddHook(hook)
	}
	q := of(New(rdb, name, append(opts, WithPrefix(env.Prefix))...))(t)
	return q
}

// storeTogether stores jobs by one call of the script.
func storeTogether(p *store.Partition, jobs ...Job) (stored []store.Stored, err error) {
	all := make([]store.Job, len(jobs))
	for i, job := range jobs {
		all[i] = job.stored()
		all[i].Payload = job.Payload
	}
	stored, errs := p.EnqueueTogether(context.Background(), all...)
	return stored, errors.Join(errs...)
}

// claimOf is the claim on a message of a queue with one partition.
func claimOf(q *Queue, m *store.Message, token string) *claim {
	m.Due, m.Left = time.Time{}, 0 // a reply after a lost one has others
	return &claim{message: messageOf(m), stored: m, queue: q, partition: q.manifests.partitions[0], token: token, startBy: m.ExpiresAt}
}

// of returns what a call returned, without an error.
func of[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// eachQueue runs a test of a queue with these options on each Redis.
func eachQueue(t *testing.T, test func(t *testing.T, q *Queue), opts ...Option) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { test(t, testQueue(t, env, opts...)) })
}

// errOf is the error of a call.
func errOf[T any](_ T, err error) error { return err }

func enqueueTest(t *testing.T, q *Queue, id, key string) {
	t.Helper()
	enqueueJob(t, q, Job{ID: id, Key: key, Payload: []byte("work")})
}

func enqueueJob(t *testing.T, q *Queue, job Job) Receipt {
	t.Helper()
	receipt := of(q.Enqueue(t.Context(), job))(t)
	return receipt
}

// claimTest claims up to n messages and returns their claims.
func claimTest(t *testing.T, q *Queue, token string, n int) (claims []*claim) {
	t.Helper()
	b := of(q.manifests.partitions[0].Claim(t.Context(), token, time.Minute, n))(t)
	for _, m := range b.Messages {
		claims = append(claims, claimOf(q, m, token))
	}
	return claims
}

// firstTries are when claims were settled first, by the claim.
var firstTries sync.Map

// endAgain is c.end for one that may have been settled before.
func endAgain(c *claim, v outcome) *store.Settlement {
	s := c.end(v, time.Minute)
	if first, tried := firstTries.Load(c); tried {
		s.First = first.(time.Time)
	}
	return s
}

// settleOnce settles a claim as a Worker does, once.
func settleOnce(c *claim, v outcome) (*store.Settlement, error) {
	s := endAgain(c, v)
	c.partition.SettleTogether([]*store.Settlement{s})
	if firstTries.Store(c, s.First); s.Claimed != nil {
		s.Claimed.Due, s.Claimed.Left = time.Time{}, 0
	}
	return s, s.Err
}

// settled is settleOnce without an error.
func settled(t *testing.T, c *claim, v outcome) *store.Settlement {
	t.Helper()
	s := of(settleOnce(c, v))(t)
	return s
}

func settleTest(t *testing.T, c *claim, v outcome) (held bool) {
	t.Helper()
	return settled(t, c, v).Held
}

func statusTest(t *testing.T, q *Queue, id string) Status {
	t.Helper()
	s := of(q.Status(t.Context(), id))(t)
	return s
}

func statsTest(t *testing.T, q *Queue) Stats {
	t.Helper()
	s := of(q.Stats(t.Context()))(t)
	return s
}

func TestScripts_AClaimThatIsSentAgainTakesNothingMore(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		for i := range 6 {
			enqueueTest(t, q, fmt.Sprint(i), "")
		}
		first, running := claimTest(t, q, "one", 4), q.manifests.partitions[0].Keys[store.KeyRunning]
		require.Len(t, first, 4)
		end := q.rdb.ZScore(t.Context(), running, "0 ").Val()
		require.Equal(t, first, claimTest(t, q, "one", 5))
		require.GreaterOrEqual(t, q.rdb.ZScore(t.Context(), running, "0 ").Val(), end, "the lease starts anew")
		require.True(t, settleTest(t, first[0], outcome{end: store.Finished}))
		require.Equal(t, first[1:], claimTest(t, q, "one", 5), "what is settled is not given out again")
		require.NoError(t, q.rdb.ZAdd(t.Context(), running, scored(0, "1 ")).Err())
		require.Len(t, claimTest(t, q, "two", 5), 3)
		require.Equal(t, first[2:], claimTest(t, q, "one", 5), "nor what was taken over")
	})
}

// Its reply was lost, and it was sent again; its first copy comes to Redis when its sender has gone on.
func TestScripts_AClaimThatComesAfterALaterOneTakesNothing(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		for i := range 5 {
			enqueueTest(t, q, fmt.Sprint(i), "")
		}
		require.Len(t, claimTest(t, q, "worker.9", 1), 1)
		require.Len(t, claimTest(t, q, "worker.10", 1), 1)
		require.Empty(t, claimTest(t, q, "worker.9", 1))
		require.Len(t, claimTest(t, q, "worker.10", 2), 1, "sent again")
		require.Len(t, claimTest(t, q, "other.1", 2), 2)
		require.Len(t, claimTest(t, q, "worker.11", 2), 1)
	})
}

// A receipt for each fetcher, and those of the dead are forgotten.
func TestReceipts_AreBounded(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		p := q.manifests.partitions[0]
		for i := range 700 {
			require.NoError(t, q.rdb.HSet(t.Context(), p.Keys[store.KeyReceipts], fmt.Sprint("old", i), "1700000000000 1 ").Err())
		}
		for i := range 100 {
			enqueueTest(t, q, fmt.Sprint(i), "")
			require.Len(t, claimTest(t, q, fmt.Sprint("worker.", i+1), 1), 1)
		}
		require.Greater(t, q.rdb.HLen(t.Context(), p.Keys[store.KeyReceipts]).Val(), int64(500), "one fetcher, one receipt")
		for i := range 100 {
			enqueueTest(t, q, fmt.Sprint("b", i), "")
			require.Len(t, claimTest(t, q, fmt.Sprint("worker", i, ".1"), 1), 1)
		}
		require.Less(t, q.rdb.HLen(t.Context(), p.Keys[store.KeyReceipts]).Val(), int64(200))
	})
}

func TestScripts_AClaimTellsWhenToLookAgain(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		wait := func() time.Duration {
			t.Helper()
			b := of(q.manifests.partitions[0].Claim(t.Context(), ident.Random(16), 10*time.Second, 1))(t)
			return b.Wait
		}
		near := func(want time.Duration) {
			t.Helper()
			require.InDelta(t, want.Seconds(), wait().Seconds(), 5)
		}
		near(time.Minute)
		enqueueJob(t, q, Job{ID: "due", Delay: 40 * time.Second})
		near(40 * time.Second)
		enqueueJob(t, q, Job{ID: "expires", MaxAge: 25 * time.Second, Delay: 24 * time.Second})
		near(24 * time.Second)
		enqueueTest(t, q, "now", "")
		near(10 * time.Second) // the end of its own claim
	})
}

func TestScripts_AFullRedisStopsEnqueueingAndNothingElse(t *testing.T) {
	server := redistest.Start(t)
	env := &redistest.Env{Addr: server.Addr, Real: true, Prefix: "p"}
	q := testQueue(t, env)
	ends := map[string]store.End{"done": store.Finished, "dead": store.Died, "retry": store.Failed, "held": store.KeyHeld, "returned": store.Returned}
	for id := range ends {
		enqueueTest(t, q, id, "key of "+id)
	}
	enqueueTest(t, q, "reaped", "key of reaped")
	claims := claimTest(t, q, "token", 6)
	require.Len(t, claims, 6)
	enqueueTest(t, q, "queued", "key of queued")
	require.NoError(t, q.rdb.ZAdd(t.Context(), q.manifests.partitions[0].Keys[store.KeyRunning], scored(0, "reaped key of reaped")).Err())
	require.NoError(t, q.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	before := redistest.Keys(t, q.rdb, "p")

	require.ErrorIs(t, errOf(q.Enqueue(t.Context(), Job{ID: "more", Key: "more"})), core.ErrUnavailable)
	require.ElementsMatch(t, before, redistest.Keys(t, q.rdb, "p"), "a refused job leaves nothing behind")

	for _, c := range claims {
		if c.message.ID == "reaped" {
			continue
		}
		held := of(q.manifests.partitions[0].Extend(t.Context(), q.rdb, time.Minute, false, c.stored))(t)
		require.Equal(t, []bool{true}, held)
		require.True(t, settleTest(t, c, outcome{end: ends[c.message.ID], delay: time.Minute}))
	}
	found := of(q.manifests.partitions[0].Wake(t.Context(), []string{"key of held"}, true))(t)
	require.Equal(t, []store.Woken{store.WakeDue}, found)
	require.Len(t, claimTest(t, q, "another", 10), 3, "held, reaped and queued")
	require.ErrorIs(t, q.Redrive(t.Context(), "dead", 0), core.ErrUnavailable)
	require.Equal(t, StateDead, statusTest(t, q, "dead").State, "refused as a whole")
	require.NoError(t, q.Purge(t.Context(), "dead"))
	require.NoError(t, q.Cancel(t.Context(), "retry"))
}

func TestScripts_WhatACallClaimsIsBoundedInBytes(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		const keys, size = 12, 512 << 10
		for i := range 2 * keys {
			enqueueJob(t, q, Job{Key: fmt.Sprint("k", i%keys), Payload: make([]byte, size)})
		}
		var batch []*store.Settlement
		for n := 0; len(batch) < keys; n++ {
			claims := claimTest(t, q, fmt.Sprint(n), keys)
			require.NotEmpty(t, claims)
			require.LessOrEqual(t, len(claims), 3)
			for _, c := range claims {
				v := outcome{end: store.Finished, ofKey: true, next: fmt.Sprint("next", len(batch))}
				batch = append(batch, c.end(v, time.Minute))
			}
		}
		q.manifests.partitions[0].SettleTogether(batch)
		bytes := 0
		for _, s := range batch {
			require.NoError(t, s.Err)
			if s.Claimed != nil {
				bytes += len(s.Claimed.Payload)
			}
		}
		require.Positive(t, bytes)
		require.LessOrEqual(t, bytes, 1<<20+size)
	})
}

func TestScripts_WhatASettlementClaimedIsNotDueAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, which := range []string{"key", "any"} {
			q := hookedQueue(t, env, which, nil)
			for i, key := range []string{"k", "other"} {
				enqueueTest(t, q, key, key)
				enqueueJob(t, q, Job{ID: fmt.Sprint("delayed", i), Key: key, Delay: 200 * time.Millisecond})
			}
			claims := claimTest(t, q, "first", 2)
			require.Len(t, claims, 2)
			time.Sleep(210 * time.Millisecond)
			batch := []*store.Settlement{
				claims[0].end(outcome{end: store.Finished, next: "next0"}, time.Minute),
				claims[1].end(outcome{end: store.Finished, ofKey: which == "key", next: "next1"}, time.Minute),
			}
			q.manifests.partitions[0].SettleTogether(batch)
			due := of(q.rdb.ZRange(t.Context(), q.manifests.partitions[0].Keys[store.KeyWaiting], 0, -1).Result())(t)
			var seen []string // what runs, or is due
			for _, member := range due {
				id, _, _ := strings.Cut(member, " ")
				seen = append(seen, id)
			}
			for _, s := range batch {
				require.NoError(t, s.Err)
				if next := s.Claimed; next != nil {
					require.NotContains(t, seen, next.ID, "it runs twice, or runs and is due")
					seen = append(seen, next.ID)
				}
			}
			require.Greater(t, len(seen), len(due))
		}
	})
}

func TestScripts_AMessageTooOldForItsNextAttemptExpiresAtOnce(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		enqueueTest(t, q, "id", "k")
		enqueueTest(t, q, "behind", "k")
		c := claimTest(t, q, "1", 1)[0]
		for range 2 {
			s := settled(t, c, outcome{end: store.Failed, delay: time.Hour, err: errors.New("why")})
			require.Equal(t, []any{store.Outlived, true, true, (*store.Message)(nil)}, []any{s.End, s.Held, s.AnyDue, s.Claimed})
		}
		s := statusTest(t, q, "id")
		require.Equal(t, []any{StateExpired, "why"}, []any{s.State, s.Cause})
		require.Equal(t, "behind", claimTest(t, q, "2", 1)[0].message.ID)
	})
}

func TestScripts_ADeadLetterThatDiedAnewIsNotTheOneThatWasSeen(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		enqueueTest(t, q, "id", "k")
		require.True(t, settleTest(t, claimTest(t, q, "1", 1)[0], outcome{end: store.Died}))
		e := of(q.Peek(t.Context(), "id"))(t)
		now, before := deadLetters([]Entry{e})[0], store.Letter{ID: "id", Died: "1"}
		p := q.manifests.partitions[0]

		words := of(p.Redrive(t.Context(), time.Minute, before))(t)
		require.Equal(t, []store.Redriven{""}, words)
		purged, err := p.Purge(t.Context(), store.Letter{ID: "none"}, before)
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, purged)
		words, err = p.Redrive(t.Context(), time.Minute, now, now)
		require.NoError(t, err)
		require.Equal(t, []store.Redriven{store.RedriveDone, store.RedriveDone}, words)
		purged, err = p.Purge(t.Context(), store.Letter{ID: "id"})
		require.NoError(t, err)
		require.Equal(t, []bool{false}, purged)
		require.Len(t, claimTest(t, q, "2", 2), 1)
	})
}

// claimNext settles a claim and claims the next message with the token.
func claimNext(t *testing.T, c *claim, which, token string) *store.Settlement {
	t.Helper()
	return settled(t, c, outcome{end: store.Finished, ofKey: which == "key", next: token})
}

func TestScripts_ASettlementThatIsSentAgainBringsWhatItClaimed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for which, want := range map[string]string{"key": "b", "any": "other"} {
			q := hookedQueue(t, env, which, nil)
			running := q.manifests.partitions[0].Keys[store.KeyRunning]
			for _, id := range []string{"a", "b", "c"} {
				enqueueTest(t, q, id, "k")
			}
			if which == "any" {
				enqueueTest(t, q, "other", "l")
				time.Sleep(2 * time.Millisecond) // it is due before what becomes due now
			}
			first := claimTest(t, q, "one", 1)[0]
			s := claimNext(t, first, which, "two")
			require.Equal(t, want, s.Claimed.ID)
			require.EqualValues(t, 1, q.rdb.ZCard(t.Context(), running).Val())

			// The caller counts the lease from when it asked again, so Redis must too.
			member := want + " " + s.Claimed.Key
			require.NoError(t, q.rdb.ZIncrBy(t.Context(), running, -30_000, member).Err())
			firstTries.Store(first, s.First.Add(-30*time.Second))
			before := q.rdb.ZScore(t.Context(), running, member).Val()
			require.Equal(t, s.Claimed, claimNext(t, first, which, "two").Claimed)
			require.Greater(t, q.rdb.ZScore(t.Context(), running, member).Val(), before+20_000)
			require.EqualValues(t, 1, q.rdb.ZCard(t.Context(), running).Val(), "it takes nothing more")

			require.NoError(t, ageRecord(q, want))
			again := claimNext(t, first, which, "two")
			require.True(t, again.Held)
			require.Nil(t, again.Claimed, "what is too old by now is not started")
		}
	})
}

// Workers with other claim leases share its queue: it is sent again together with theirs.
func TestScripts_ASettlementThatIsSentAgainAmongLongerLeasesBringsWhatItClaimed(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		for _, id := range []string{"a", "b", "c"} {
			enqueueTest(t, q, id, "")
		}
		claims := claimTest(t, q, "one", 2)
		s := claimNext(t, claims[0], "any", "two")
		again := endAgain(claims[0], outcome{end: store.Finished, next: "two"})
		q.manifests.partitions[0].SettleTogether([]*store.Settlement{again, claims[1].end(outcome{end: store.Finished}, time.Hour)})
		require.NoError(t, again.Err)
		require.NotNil(t, again.Claimed)
		require.Equal(t, s.Claimed.ID, again.Claimed.ID)
	})
}

func TestScripts_ADamagedClaimCostsNoOtherMessageAnAttempt(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		enqueueTest(t, q, "id", "k")
		c := claimTest(t, q, "one", 1)[0]
		for i := range 5 {
			enqueueTest(t, q, fmt.Sprint(i), "")
		}
		tried := q.manifests.partitions[0].Keys[store.KeyAttempts]
		was := q.rdb.HGet(t.Context(), tried, "id").Val()
		for _, junk := range []string{"", "r", was[:7] + "x" + was[8:], strings.Replace(was, " 0", " many", 1), was + "junk"} {
			require.NoError(t, q.rdb.HSet(t.Context(), tried, "id", junk).Err())
			for range 3 {
				s := settled(t, c, outcome{end: store.Failed, lost: true, next: "two"})
				require.False(t, s.Held)
				require.Nil(t, s.Claimed)
			}
		}
		require.NoError(t, q.rdb.HSet(t.Context(), tried, "id", was).Err())
		require.EqualValues(t, 1, q.rdb.ZCard(t.Context(), q.manifests.partitions[0].Keys[store.KeyRunning]).Val())
		s := settled(t, c, outcome{end: store.Failed, next: "two"})
		require.NotNil(t, s.Claimed)
	})
}

// What a settlement claimed is looked for when it is sent again. Junk among what runs brings no message.
func TestScripts_JunkAmongWhatRunsIsNoMessage(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		p := q.manifests.partitions[0]
		enqueueTest(t, q, "id", "k")
		enqueueTest(t, q, "stranger", "l")
		c := claimTest(t, q, "one", 1)[0]
		require.Len(t, claimTest(t, q, "stranger", 1), 1)
		for range 2 {
			s := settled(t, c, outcome{end: store.Finished})
			require.True(t, s.Held)
		}
		require.NoError(t, q.rdb.HSet(t.Context(), p.Keys[store.KeyMessages], "short", "1--", "junk", "junk").Err())
		for _, junk := range []string{"unknown", "id", "short", "junk", "", " ", "\x00\xff\n", strings.Repeat("j", 10_000)} {
			require.NoError(t, q.rdb.ZAdd(t.Context(), p.Keys[store.KeyRunning], scored(9e15, junk)).Err())
			require.NoError(t, q.rdb.HSet(t.Context(), p.Keys[store.KeyAttempts], junk, "r------1 0 0 0 two ").Err())
			s := claimNext(t, c, "any", "two")
			require.True(t, s.Held)
			require.Nil(t, s.Claimed, "%q", junk)
		}
	})
}

// Others that run are claimed, or extended, before the settlement and after it, in any number.
func TestScripts_WhatASettlementClaimedIsFoundAmongMany(t *testing.T) {
	const many = 1500
	eachQueue(t, func(t *testing.T, q *Queue) {
		p := q.manifests.partitions[0]
		run := func(name string) (claims []*claim) {
			for at := 0; at < many; at += store.BatchItems {
				batch := make([]Job, store.BatchItems)
				for i := range batch {
					batch[i] = Job{ID: fmt.Sprint(name, at+i), MaxAge: time.Hour}
				}
				require.NoError(t, errOf(storeTogether(p, batch...)))
				claims = append(claims, claimTest(t, q, fmt.Sprint(name, ".", at+1), store.BatchItems)...)
			}
			require.GreaterOrEqual(t, len(claims), many)
			return claims
		}
		enqueueTest(t, q, "id", "")
		c := claimTest(t, q, "one", 1)[0]
		run("earlier")
		before := run("before")
		enqueueTest(t, q, "next", "")
		time.Sleep(20 * time.Millisecond) // what was claimed before has an earlier end
		s := claimNext(t, c, "any", "two")
		require.Equal(t, "next", s.Claimed.ID)
		run("after")
		for some := range slices.Chunk(before, extendBatch) {
			held := of(p.Extend(t.Context(), q.rdb, time.Minute, false, storedOf(some)...))(t)
			require.NotContains(t, held, false)
		}
		again := claimNext(t, c, "any", "two")
		require.Equal(t, s.Claimed, again.Claimed)
	}, WithMaxDepth(4*many))
}

// lockerTest is a locker on the Redis of a queue.
func lockerTest(t *testing.T, q *Queue) *core.Locker {
	t.Helper()
	locker := of(core.New(q.rdb, core.WithPrefix(q.prefix)))(t)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

func TestCancel_WhatExpiredMeanwhileIsNotCancelled(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, cancel := range map[string]func(q *Queue) (int, error){
			"Cancel":    func(q *Queue) (int, error) { return 0, q.Cancel(t.Context(), "id") },
			"CancelAll": func(q *Queue) (int, error) { return q.CancelAll(t.Context(), Filter{}) },
		} {
			other, q := hookedQueue(t, env, name, nil), hookedQueue(t, env, name, nil)
			enqueueTest(t, q, "id", "k")
			sent := 0
			q.rdb.(*redis.Client).AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
				if !redistest.IsScript(cmd) || !slices.Contains([]any{store.Scripts["cancel"].Hash(), store.Scripts["cancel"].Source()}, redistest.Args(cmd)[1]) {
					return
				}
				if sent++; sent == 1 {
					require.NoError(t, ageRecord(other, "id"))
				}
			}))
			n, err := cancel(q)
			require.Zero(t, n)
			if name == "Cancel" {
				require.ErrorIs(t, err, ErrEnded)
				require.ErrorContains(t, err, "it is expired")
			} else {
				require.NoError(t, err)
			}
			require.Positive(t, sent)
			require.Equal(t, StateExpired, statusTest(t, q, "id").State)
			require.Equal(t, Totals{Enqueued: 1, Expired: 1}, statsTest(t, q).Totals)
		}
	})
}
