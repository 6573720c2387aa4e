package core_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
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
		const leases, overwritten = 200, 5
		l, rdb := newLocker(t, env), env.Client(t)
		held := make([]*core.Lease, leases)
		for i := range held {
			var err error
			held[i], err = l.TryAcquire(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		for i := range overwritten {
			require.NoError(t, rdb.Set(t.Context(), core.RecordName(env.Prefix, fmt.Sprint(i*leases/overwritten)), "x", 0).Err())
		}
		for i := range overwritten {
			<-held[i*leases/overwritten].Context().Done() // when they are renewed, together with others
		}
		for i, lease := range held {
			if i%(leases/overwritten) == 0 {
				require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
			} else {
				assert.NoError(t, context.Cause(lease.Context()))
			}
		}
	})
}

// A foreign record has no expiry, or is one of several keys.
func TestFormat_ForeignRecordsAmongOthers(t *testing.T) {
	eachNewer(t, func(t *testing.T, env *redistest.Env, newer any) {
		ctx, rdb := t.Context(), env.Client(t)
		l := newLocker(t, env)
		writeForeign(t, rdb, core.RecordName(env.Prefix, "b"), newer, 0)
		before := contents(t, rdb, core.RecordName(env.Prefix, "b"))

		_, err := l.TryAcquire(ctx, "b")
		var conflict *core.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Zero(t, conflict.Remaining, "nobody knows when it ends")
		_, err = l.TryAcquireAll(ctx, []string{"a", "b", "c"})
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, "b", conflict.Key)
		for _, key := range []string{"a", "c"} { // none was taken
			lease := testbed.Take(t, l, key)
			defer func() { require.NoError(t, lease.Release(ctx)) }()
		}
		require.Equal(t, before, contents(t, rdb, core.RecordName(env.Prefix, "b")))
		require.Equal(t, time.Duration(-1), rdb.PTTL(ctx, core.RecordName(env.Prefix, "b")).Val())
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

const formatCallers = 20

// All who come for a key that a newer version holds meet a conflict; those who wait have it
// one after the other when it is free.
func TestFormat_CallersBehindANewerRecord(t *testing.T) {
	eachNewer(t, func(t *testing.T, env *redistest.Env, newer any) {
		ctx, rdb := t.Context(), env.Client(t)
		lockers := []*core.Locker{newLocker(t, env), newLocker(t, env)}
		record := core.RecordName(env.Prefix, "k")
		writeForeign(t, rdb, record, newer, time.Minute)
		before := contents(t, rdb, record)

		var wg sync.WaitGroup
		for i := range formatCallers {
			l := lockers[i%2]
			wg.Go(func() {
				_, err := l.TryAcquire(ctx, "k")
				var conflict *core.ConflictError
				if assert.ErrorAs(t, err, &conflict) {
					assert.InDelta(t, time.Minute, conflict.Remaining, float64(10*time.Second))
				}
				assert.NotErrorIs(t, err, core.ErrUnavailable)
			})
			wg.Go(func() {
				err := l.Guard(retryFor(100*time.Millisecond)).Do(ctx, core.Call{Key: "k"}, func(context.Context) error {
					return errors.New("it ran")
				})
				assert.ErrorIs(t, err, core.ErrConflict)
				assert.NotErrorIs(t, err, core.ErrUnavailable)
			})
		}
		wg.Wait()

		granted := make(chan struct{}, formatCallers)
		for i := range formatCallers {
			l, opts := lockers[i%2], []core.AcquireOption{}
			if i%4 == 3 {
				opts = append(opts, core.Shared())
			}
			wg.Go(func() {
				lease, err := l.Acquire(ctx, "k", opts...)
				if assert.NoError(t, err) {
					granted <- struct{}{}
					assert.NoError(t, lease.Release(ctx))
				}
			})
		}
		wg.Go(func() {
			set, err := lockers[0].AcquireAll(ctx, []string{"k", "other"})
			if assert.NoError(t, err) {
				assert.NoError(t, set.Release(ctx))
			}
		})
		time.Sleep(300 * time.Millisecond)
		require.Empty(t, granted)
		require.Equal(t, before, contents(t, rdb, record))
		require.NoError(t, rdb.Del(ctx, record).Err())
		wg.Wait()
	})
}

// retryFor waits for so long, and refuses then.
type retryFor time.Duration

func (d retryFor) OnConflict(_ context.Context, c core.Conflict) (core.Decision, error) {
	if c.Waited < time.Duration(d) {
		return core.RetryAfter(20 * time.Millisecond), nil
	}
	return core.Reject(), nil
}

// What a record becomes while its holder works takes the key from the holder, and not the record.
func TestFormat_AHolderWhoseRecordBecameNewer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		l := newLocker(t, env)
		hash := func(record string) {
			inflate(t, rdb, record)
			require.NoError(t, rdb.HSet(ctx, record, "v", 2).Err())
		}
		text := func(record string) { require.NoError(t, rdb.Set(ctx, record, foreignText, time.Minute).Err()) }
		for name, verb := range map[string]func(*core.Lease) error{
			"Extend":    func(lease *core.Lease) error { return lease.Extend(ctx, time.Hour) },
			"Release":   func(lease *core.Lease) error { return lease.Release(ctx) },
			"Downgrade": func(lease *core.Lease) error { return lease.Downgrade(ctx) },
			"Detach":    func(lease *core.Lease) error { _, err := lease.Detach(ctx); return err },
		} {
			for _, becomes := range []func(string){hash, text} {
				lease := testbed.Take(t, l, name)
				record := core.RecordName(env.Prefix, name)
				becomes(record)
				before := contents(t, rdb, record)
				require.ErrorIs(t, verb(lease), core.ErrLeaseLost, name)
				require.Equal(t, before, contents(t, rdb, record), name)
				ok, err := l.ForceRelease(ctx, name, lease.Fence())
				require.NoError(t, err)
				require.False(t, ok)
				require.NoError(t, rdb.Del(ctx, record).Err())
			}
		}
	})
}

func TestFormat_InspectAndListTellOfANewerRecord(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		l := newLocker(t, env)
		for what, fields := range foreignRecords {
			writeForeign(t, rdb, core.RecordName(env.Prefix, what), fields, 0)
			info, err := l.Inspect(ctx, what)
			require.NoError(t, err)
			require.True(t, info.UnknownFormat, what)
			require.False(t, info.Free(), what)
			require.Equal(t, &core.KeyInfo{Key: what, At: info.At, UnknownFormat: true, Held: 1}, info)
		}
		listed, cursor := 0, ""
		for more := true; more; more = cursor != "" {
			page, err := l.List(ctx, cursor, 100)
			require.NoError(t, err)
			listed, cursor = listed+len(page.Keys), page.Next
		}
		require.Equal(t, len(foreignRecords)-1, listed, "all but the one without a version")

		lease := testbed.Take(t, l, "ours")
		info, err := l.Inspect(ctx, "ours")
		require.NoError(t, err)
		require.False(t, info.UnknownFormat)
		require.NoError(t, lease.Release(ctx))
		info, err = l.Inspect(ctx, "ours")
		require.NoError(t, err)
		require.False(t, info.UnknownFormat)
		require.True(t, info.Free())
	})
}

// A node of a quorum with a newer record does not vote for anybody.
func TestFormat_AQuorumMeetsANewerRecord(t *testing.T) {
	t.Parallel()
	for kind, newer := range newerRecords {
		t.Run(kind, func(t *testing.T) { testQuorumMeetsANewerRecord(t, newer) })
	}
}

func testQuorumMeetsANewerRecord(t *testing.T, newer any) {
	t.Helper()
	nodes := make([]redis.UniversalClient, 3)
	envs := make([]*redistest.Env, len(nodes))
	for i := range nodes {
		envs[i] = redistest.Embedded(t)
		nodes[i] = envs[i].Client(t)
	}
	l, err := core.NewQuorum(nodes, core.WithPrefix("p"))
	require.NoError(t, err)
	l.WaitForNodes(time.Minute, nodes) // a busy machine is no outage
	t.Cleanup(func() { _ = l.Close() })
	record := core.RecordName("p", "k")
	writeForeign(t, envs[0].Client(t), record, newer, time.Minute)
	before := contents(t, envs[0].Client(t), record)
	lease, err := l.TryAcquire(t.Context(), "k")
	require.NoError(t, err, "two of three")
	require.NoError(t, lease.Release(t.Context()))
	require.Equal(t, before, contents(t, envs[0].Client(t), record))

	writeForeign(t, envs[1].Client(t), record, newer, time.Minute)
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrConflict)
	require.NotErrorIs(t, err, core.ErrUnavailable)
}

// Words that a newer version may send are passed over, and so is what is cut short.
func TestFormat_UnknownMessagesAreIgnored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		l, other := newLocker(t, env), newLocker(t, env)
		l.NeverPoll()
		held, err := other.TryAcquire(ctx, "k")
		require.NoError(t, err)
		granted := make(chan error, 1)
		go func() {
			lease, err := l.Acquire(ctx, "k")
			if err == nil {
				err = lease.Release(ctx)
			}
			granted <- err
		}()
		redistest.Eventually(t, func() bool {
			info, err := other.Inspect(ctx, "k")
			return err == nil && info.Waiting == 1 && l.Listening()
		}, "a call that waits")
		info, err := other.Inspect(ctx, "k")
		require.NoError(t, err)
		channel := env.Prefix + ":wake:" + info.Waiters[0].Locker
		for _, text := range []string{
			"", " ", "grant", "grant k", "grant a b c d e", "grant  1 2 3 k", "grant2 1:x 1 2 3 k", "lost", "lost x k", "lost 1", "released", "moved 3 k",
			"\x00", "v2 grant 1:x 1 2 3 k",
		} {
			require.NoError(t, rdb.Publish(ctx, channel, text).Err())
		}
		time.Sleep(50 * time.Millisecond)
		require.Empty(t, granted)
		require.NoError(t, held.Release(ctx))
		require.NoError(t, <-granted)
	})
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
