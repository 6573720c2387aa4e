package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Each case damages the head of a line of three, or what is around it. The
// message behind it must run, and the damaged one must be accounted for.
func TestJunkIsQuarantinedAndTheWorkerGoesOn(t *testing.T) {
	t.Parallel()
	const id, member = "head", "head k"
	for name, c := range map[string]struct {
		damage func(b *bench) error
		cause  string // of the head's death; empty: it runs
	}{
		"no record": {func(b *bench) error {
			return b.rdb.Del(b.t.Context(), b.key("message:"+id)).Err()
		}, "the record is missing"},
		"a string for a record": {func(b *bench) error {
			return b.rdb.Set(b.t.Context(), b.key("message:"+id), "junk", 0).Err()
		}, "the record is a string, not a hash"},
		"an empty field": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("message:"+id), "attempts", "").Err()
		}, "attempts is not a number"},
		"letters for a number": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("message:"+id), "not_after", "soon").Err()
		}, "not_after is not a number"},
		"a number out of range": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("message:"+id), "losses", "99999999999999999999").Err()
		}, "losses is not a number"},
		"a float for a number": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("message:"+id), "not_after", "1e300").Err()
		}, "not_after is not a number"},
		"infinity for a number": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("message:"+id), "due", "inf").Err()
		}, "due is not a number"},
		"no payload": {func(b *bench) error {
			return b.rdb.HDel(b.t.Context(), b.key("message:"+id), "payload").Err()
		}, "no payload"},
		"no state": {func(b *bench) error {
			return b.rdb.HDel(b.t.Context(), b.key("message:"+id), "state").Err()
		}, "no state"},
		"another key": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("message:"+id), "key", "other").Err()
		}, "of another key"},
		"a running claim on no record": {func(b *bench) error {
			b.rdb.ZRem(b.t.Context(), b.key("due"), member)
			b.rdb.ZRem(b.t.Context(), b.key("open"), member)
			b.rdb.Del(b.t.Context(), b.key("message:"+id))
			return b.rdb.ZAdd(b.t.Context(), b.key("running"), redisZ(1, member)).Err()
		}, "the record is missing"},
		"a string for a line": {func(b *bench) error {
			return b.rdb.Set(b.t.Context(), b.key("order:k"), "junk", 0).Err()
		}, ""},
		"a string for the dead": {func(b *bench) error {
			return b.rdb.Set(b.t.Context(), b.key("dead"), "junk", 0).Err()
		}, ""},
		"an early end in open": {func(b *bench) error {
			return b.rdb.ZAdd(b.t.Context(), b.key("open"), redisZ(math.Inf(-1), member)).Err()
		}, ""},
		"no end in open": {func(b *bench) error {
			return b.rdb.ZAdd(b.t.Context(), b.key("open"), redisZ(math.Inf(1), member)).Err()
		}, ""},
		"no entry in due": {func(b *bench) error { // found when the next of the key comes
			return b.rdb.ZRem(b.t.Context(), b.key("due"), member).Err()
		}, ""},
		"words for counts": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("counts"), "enqueued", "many", "done", "9223372036854775807", "cancelled", "-").Err()
		}, ""},
		"a list for counts": {func(b *bench) error {
			b.rdb.Del(b.t.Context(), b.key("counts"))
			return b.rdb.RPush(b.t.Context(), b.key("counts"), "junk").Err()
		}, ""},
		"junk in every other field": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("message:"+id), "owner", "\x00", "settled", "", "wait", "\xff", "nudged", "junk",
				"next", "\x00\xff", "principal", "\n", "result", "junk", "ended", "inf", "cause", "\xff").Err()
		}, ""},
		"a set for running": {func(b *bench) error {
			return b.rdb.SAdd(b.t.Context(), b.key("running"), "junk").Err()
		}, ""},
		"a string for due": {func(b *bench) error {
			return b.rdb.Set(b.t.Context(), b.key("due"), "junk", 0).Err()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				b := setup(t, env)
				b.enqueue(delayqueue.Job{ID: id, Key: "k"})
				behind := b.enqueue(delayqueue.Job{Key: "k"})
				require.NoError(t, c.damage(b))
				var r ran
				b.start(r.handle)
				last := b.enqueue(delayqueue.Job{Key: "k"})
				other := b.enqueue(delayqueue.Job{Key: "other"})

				b.reaches(other, delayqueue.StateDone)
				b.reaches(last, delayqueue.StateDone)
				b.reaches(behind, delayqueue.StateDone)
				if c.cause == "" {
					b.reaches(id, delayqueue.StateDone)
					return
				}
				s := b.status(id)
				require.Equal(t, delayqueue.StateDead, s.State)
				require.Contains(t, s.Cause, "quarantined: ")
				require.Contains(t, s.Cause, c.cause)
				require.NotContains(t, r.ids(), id)
				letters := b.list(delayqueue.StateDead)
				require.Len(t, letters, 1)
				require.Equal(t, id, letters[0].ID)
				require.Equal(t, s.Cause, letters[0].Cause)
			})
		})
	}
}

func TestEntriesOfNoMessageAreQuarantined(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		ctx := t.Context()
		junk := []string{"junk", "", " ", "\x00\xff\n", strings.Repeat("j", 10_000), "a b c"}
		for _, member := range junk {
			require.NoError(t, b.rdb.ZAdd(ctx, b.key("due"), redisZ(math.Inf(-1), member)).Err())
		}
		require.NoError(t, b.rdb.ZAdd(ctx, b.key("running"), redisZ(math.Inf(-1), "x y")).Err())
		require.NoError(t, b.rdb.ZAdd(ctx, b.key("open"), redisZ(math.Inf(-1), "old one")).Err())
		var r ran
		b.start(r.handle, delayqueue.WithConcurrency(1))
		id := b.enqueue(delayqueue.Job{Key: "k"})
		b.reaches(id, delayqueue.StateDone)
		require.Equal(t, []string{id}, r.ids())
		for _, set := range []string{"due", "open", "running"} {
			require.Zero(t, b.rdb.ZCard(ctx, b.key(set)).Val(), set)
		}
		got := []string{}
		for _, l := range b.list(delayqueue.StateDead) {
			require.Contains(t, l.Cause, "quarantined: the record")
			got = append(got, l.ID)
		}
		// "" and " " have one id.
		require.ElementsMatch(t, []string{"junk", "", "\x00\xff\n", junk[4], "a", "x"}, got)
	})
}

func TestScoresBeyondReasonHoldNothingUp(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		ctx := t.Context()
		// Never due: its record says better. Claimed for ever: it is given back.
		never := b.enqueue(delayqueue.Job{})
		require.NoError(t, b.rdb.ZAdd(ctx, b.key("due"), redisZ(math.Inf(1), never+" ")).Err())
		claimed := b.enqueue(delayqueue.Job{})
		require.NoError(t, b.rdb.ZRem(ctx, b.key("due"), claimed+" ").Err())
		require.NoError(t, b.rdb.ZRem(ctx, b.key("open"), claimed+" ").Err())
		require.NoError(t, b.rdb.HSet(ctx, b.key("message:"+claimed), "state", "running", "owner", "dead", "attempts", 1).Err())
		require.NoError(t, b.rdb.ZAdd(ctx, b.key("running"), redisZ(1e300, claimed+" ")).Err())
		var r ran
		b.start(r.handle, delayqueue.WithClaimLease(100*time.Millisecond))
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		b.reaches(never, delayqueue.StateDone)
		require.Equal(t, 1, b.reaches(claimed, delayqueue.StateDone).Losses)
	})
}

func TestAnIDTakenByJunkIsAClearError(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		require.NoError(t, b.rdb.Set(t.Context(), b.key("message:id"), "junk", 0).Err())
		_, err := b.queue.Enqueue(t.Context(), delayqueue.Job{ID: "id"})
		require.ErrorContains(t, err, "not a message")
		_, err = b.queue.Status(t.Context(), "id")
		require.ErrorIs(t, err, delayqueue.ErrNotFound)
	})
}

func TestAMessageThatLostItsTurnGetsItBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		ids := []string{}
		for i := range 30 {
			ids = append(ids, b.enqueue(delayqueue.Job{}), b.enqueue(delayqueue.Job{Key: fmt.Sprint(i)}), b.enqueue(delayqueue.Job{Key: "k"}))
		}
		require.NoError(t, b.rdb.Del(t.Context(), b.key("due"), b.key("order:k"), b.key("order:7")).Err())
		require.NoError(t, b.rdb.Set(t.Context(), b.key("audit"), "junk", 0).Err())
		var r ran
		for range 2 {
			b.start(r.handle, delayqueue.WithClaimLease(time.Second)) // an idle worker looks three times in it
		}
		for _, id := range ids {
			b.reaches(id, delayqueue.StateDone)
		}
		require.ElementsMatch(t, ids, r.ids())
	})
}

func TestMessagesOutliveTheLossOfOneSet(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(b *bench) error{
		"open deleted":  func(b *bench) error { return b.rdb.Del(b.t.Context(), b.key("open")).Err() },
		"open replaced": func(b *bench) error { return b.rdb.Set(b.t.Context(), b.key("open"), "junk", 0).Err() },
		"line deleted, and begun anew": func(b *bench) error {
			return errors.Join(b.rdb.Del(b.t.Context(), b.key("order:k")).Err(),
				b.rdb.RPush(b.t.Context(), b.key("order:k"), "d").Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				b := setup(t, env)
				for _, id := range []string{"a", "b", "c", "d"} {
					b.enqueue(delayqueue.Job{ID: id, Key: "k"})
				}
				running, goOn := make(chan struct{}), make(chan struct{})
				b.start(func(_ context.Context, m delayqueue.Message) error {
					if m.ID == "a" && m.Attempt == 1 {
						close(running)
						<-goOn
					}
					return nil
				}, delayqueue.WithClaimLease(time.Second)) // an idle worker looks three times in it
				<-running
				require.NoError(t, harm(b))
				close(goOn)
				for _, id := range []string{"a", "b", "c", "d"} {
					b.reaches(id, delayqueue.StateDone)
				}
			})
		})
	}
}

func TestADamagedCountStopsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		for _, count := range []string{"enqueued", "done"} {
			require.NoError(t, b.rdb.HSet(t.Context(), b.key("counts"), count, "many").Err())
		}
		var r ran
		b.start(r.handle)
		b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone)
		require.Len(t, r.ids(), 1)
	})
}
