package core_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// Records that this version did not write. Of one each field has the name of one of ours.
var (
	foreignRecords = map[string]any{
		"of a newer version": []any{"v", "2", "grants", "\x00\x01binary"}, "without a fence": []any{"name", "Ada"},
		"of fields that are known": knownFields, "a text": foreignText,
	}
	newerRecords = map[string]any{"hash": knownFields, "text": foreignText}
	knownFields  = []any{
		"v", "2", "fence", "5", "last", "1:h.1", "h:1:h.1", "9999999999999 5 x", "held", "1", "next", "9999999999999",
		"queue", "0:w.4~9999999999999,x ", "waiting", "1", "watch", "stranger ", "reserved", "9999999999999 7",
	}
)

const foreignText = "pk3 5 1:h.1 x"

// eachNewer runs a test with each kind of newer record.
func eachNewer(t *testing.T, test func(t *testing.T, env *redistest.Env, newer any)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for kind, newer := range newerRecords {
			t.Run(kind, func(t *testing.T) {
				its := *env
				its.Prefix += kind
				test(t, &its, newer)
			})
		}
	})
}

// A key's record that somebody overwrites costs its holder the lease, and nobody else.
func TestFormat_AnOverwrittenRecordCostsNoOtherLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const every = 40
		l, rdb := newLocker(t, env), env.Client(t)
		var held []*core.Lease
		for _, key := range keyNames(5 * every) {
			held = append(held, testbed.Take(t, l, key))
		}
		for i := 0; i < len(held); i += every {
			require.NoError(t, rdb.Set(t.Context(), core.RecordName(env.Prefix, held[i].Key()), "x", 0).Err())
		}
		for i := 0; i < len(held); i += every {
			<-held[i].Context().Done() // when they are renewed, together with others
			require.ErrorIs(t, context.Cause(held[i].Context()), core.ErrLeaseLost)
		}
		for i, lease := range held {
			assert.True(t, i%every == 0 || lease.Context().Err() == nil, lease.Key())
		}
	})
}

// writeForeign stores a record that this version did not write.
func writeForeign(t *testing.T, rdb *redis.Client, record string, what any, ttl time.Duration) {
	t.Helper()
	if fields, ok := what.([]any); ok {
		require.NoError(t, rdb.HSet(t.Context(), record, fields...).Err())
	} else {
		require.NoError(t, rdb.Set(t.Context(), record, what, 0).Err())
	}
	if ttl > 0 {
		require.NoError(t, rdb.PExpire(t.Context(), record, ttl).Err())
	}
}

// contents is what is stored under a key.
func contents(t *testing.T, rdb *redis.Client, record string) any {
	t.Helper()
	if rdb.Type(t.Context(), record).Val() == "hash" {
		return rdb.HGetAll(t.Context(), record).Val()
	}
	return rdb.Get(t.Context(), record).Val()
}

// All who come for a key that a newer version holds meet a conflict; those who wait have it
// one after the other when it is free.
func TestFormat_CallersBehindANewerRecord(t *testing.T) {
	eachNewer(t, func(t *testing.T, env *redistest.Env, newer any) {
		const callers = 20
		ctx, rdb := t.Context(), env.Client(t)
		lockers := []*core.Locker{newLocker(t, env), newLocker(t, env)}
		record := core.RecordName(env.Prefix, "k")
		writeForeign(t, rdb, record, newer, time.Minute)
		before := contents(t, rdb, record)
		var all sync.WaitGroup
		refused := func(err error) {
			var conflict *core.ConflictError
			if assert.ErrorAs(t, err, &conflict) {
				assert.InDelta(t, time.Minute, conflict.Remaining, float64(50*time.Second))
			}
			assert.NotErrorIs(t, err, core.ErrUnavailable)
		}
		for i := range callers {
			all.Go(func() {
				_, err := lockers[i%2].TryAcquire(ctx, "k")
				refused(err)
			})
			all.Go(func() {
				refused(lockers[i%2].Guard(retry.Policy{MaxWait: 100 * time.Millisecond}).Do(ctx, core.Call{Key: "k"}, mustNotRun))
			})
		}
		all.Wait()

		grants := make(chan error, callers+1)
		for i := range callers {
			opts := map[bool][]core.AcquireOption{true: {core.Shared()}}[i%4 == 3]
			go func() {
				lease, err := lockers[i%2].Acquire(ctx, "k", opts...)
				grants <- errors.Join(err, lease.Release(ctx))
			}()
		}
		go func() {
			set, err := lockers[0].AcquireAll(ctx, []string{"k", "other"})
			grants <- errors.Join(err, set.Release(ctx))
		}()
		redistest.Eventually(t, func() bool { return lockers[0].InformedCalls()+lockers[1].InformedCalls() >= callers }, "all wait")
		require.Empty(t, grants)
		require.Equal(t, before, contents(t, rdb, record))
		require.NoError(t, rdb.Del(ctx, record).Err())
		for range callers + 1 {
			require.NoError(t, <-grants)
		}
	})
}

func TestFormat_InspectAndListTellOfANewerRecord(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb, l := t.Context(), env.Client(t), newLocker(t, env)
		for what, fields := range foreignRecords {
			record := core.RecordName(env.Prefix, what)
			writeForeign(t, rdb, record, fields, 0)
			before := contents(t, rdb, record)
			info, err := l.Inspect(ctx, what)
			require.NoError(t, err)
			require.False(t, info.Free(), what)
			require.Equal(t, &core.KeyInfo{Key: what, At: info.At, UnknownFormat: true, Held: 1}, info)

			var conflict *core.ConflictError
			_, err = l.TryAcquire(ctx, what)
			require.ErrorAs(t, err, &conflict)
			require.Zero(t, conflict.Remaining, "nobody knows when it ends")
			_, err = l.TryAcquireAll(ctx, []string{"a", what, "z"})
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, what, conflict.Key)
			for _, key := range []string{"a", "z"} { // none was taken
				require.NoError(t, testbed.Take(t, l, key).Release(ctx))
			}
			require.Equal(t, before, contents(t, rdb, record))
			require.Equal(t, time.Duration(-1), rdb.PTTL(ctx, record).Val())
		}
		require.Len(t, listAll(t, l, 100), len(foreignRecords)-1, "all but the one without a version")

		lease := testbed.Take(t, l, "ours")
		info, err := l.Inspect(ctx, "ours")
		require.NoError(t, err)
		require.False(t, info.UnknownFormat)
		require.NoError(t, lease.Release(ctx))
	})
}

// A node of a quorum with a newer record does not vote for anybody.
func TestFormat_AQuorumMeetsANewerRecord(t *testing.T) {
	t.Parallel()
	for kind, newer := range newerRecords {
		t.Run(kind, func(t *testing.T) {
			var nodes []redis.UniversalClient
			for range 3 {
				nodes = append(nodes, redistest.Embedded(t).Client(t))
			}
			l, err := core.NewQuorum(nodes, core.WithPrefix("p"))
			require.NoError(t, err)
			l.WaitForNodes(time.Minute, nodes) // a busy machine is no outage
			t.Cleanup(func() { _ = l.Close() })
			record, first := core.RecordName("p", "k"), nodes[0].(*redis.Client)
			writeForeign(t, first, record, newer, time.Minute)
			before := contents(t, first, record)
			require.NoError(t, testbed.Take(t, l, "k").Release(t.Context()), "two of three")
			require.Equal(t, before, contents(t, first, record))

			writeForeign(t, nodes[1].(*redis.Client), record, newer, time.Minute)
			_, err = l.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, core.ErrConflict)
			require.NotErrorIs(t, err, core.ErrUnavailable)
		})
	}
}

func TestFormat_ATokenOfANewerVersionSaysSo(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Embedded(t))
	for _, token := range []string{"pk2.AAAA", "pk10."} {
		_, err := l.Resume(t.Context(), token)
		require.ErrorIs(t, err, core.ErrInvalidToken)
		require.ErrorContains(t, err, "newer version")
	}
	for _, token := range []string{"pk1.AAAA", "pk0.AAAA", "pk.AAAA", "pk2", "pkx.A", "pk-2.A", "AAAA", ""} {
		_, err := l.Resume(t.Context(), token)
		require.ErrorIs(t, err, core.ErrInvalidToken)
		require.NotContains(t, err.Error(), "newer version", token)
	}
}
