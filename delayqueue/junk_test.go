package delayqueue_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Each case damages the head of a key's FIFO of three, or what is around it. The worker goes on, and the damaged one is
// accounted for. Those behind it run, if their places were not lost. It is long since most of it is a table.
func TestJunk_IsQuarantinedAndTheWorkerGoesOn(t *testing.T) {
	t.Parallel()
	const id, member = "head", "head k"
	edit := func(key string, edit func(string) string) func(b *bench) error {
		return func(b *bench) error { return b.queue.EditRecord(key, id, edit) }
	}
	set := func(key, value string) func(b *bench) error {
		return func(b *bench) error { return b.rdb.HSet(b.t.Context(), b.key(key), id, value).Err() }
	}
	for name, c := range map[string]struct {
		damage func(b *bench) error
		cause  string // of the head's death; empty: it runs
		lost   bool   // instead: those of its key have lost their turn
	}{
		"no record":            {func(b *bench) error { return b.rdb.HDel(b.t.Context(), b.key("m"), id).Err() }, "the record cannot be read", false},
		"junk for a record":    {set("m", "junk"), "the record cannot be read", false},
		"an empty record":      {set("m", ""), "the record cannot be read", false},
		"another format":       {edit("m", func(s string) string { return "2" + s[1:] }), "the record cannot be read", false},
		"letters for a number": {edit("m", func(s string) string { return s[:32] + "in a while, so"[:13] + s[45:] }), "the record cannot be read", false},
		"a wrong length":       {edit("m", func(s string) string { return s[:48] + "999" + s[51:] }), "the record cannot be read", false},
		"half of a record":     {edit("m", func(s string) string { return s[:len(s)-8] }), "the record cannot be read", false},
		"no payload":           {edit("m", func(s string) string { return s[:2] + "b" + s[3:] }), "no payload", false},
		"another key":          {edit("m", func(s string) string { return strings.Replace(s, "001008000k", "005008000other", 1) }), "the record cannot be read", false},
		"no attempts":          {set("r", ""), "the record cannot be read", false},
		"junk for attempts":    {set("r", "\x00\xff\n"), "the record cannot be read", false},
		"letters for attempts": {set("r", "-------many 0 0 0  "), "the record cannot be read", false},
		"attempts out of range": {
			set("r", "-------99999999999999999999 0 0 0  "), "the record cannot be read", false,
		},
		"a float for attempts": {set("r", "-------1e300 0 0 0  "), "the record cannot be read", false},
		"a running claim on no record": {func(b *bench) error {
			b.rdb.ZRem(b.t.Context(), b.key("z"), member)
			b.rdb.HDel(b.t.Context(), b.key("m"), id)
			return b.rdb.ZAdd(b.t.Context(), b.key("w"), redisZ(1, member)).Err()
		}, "the record cannot be read", false},
		"junk for attempts and tokens": {set("r", "w\x00\xff\n   0 0 0 0 \x00 \xff \n"), "", false},
		"an early score":               {func(b *bench) error { return b.rdb.ZAdd(b.t.Context(), b.key("z"), redisZ(math.Inf(-1), member)).Err() }, "", false},
		"words for counts": {func(b *bench) error {
			return b.rdb.HSet(b.t.Context(), b.key("c"), "enqueued", "many", "done", "9223372036854775807", "cancelled", "-",
				"seq", "-1", "made", "x inf", "given", "7 -1 many", "results", "", "paused", "1e3").Err()
		}, "", false},
		"a score of never": {func(b *bench) error { return b.rdb.ZAdd(b.t.Context(), b.key("z"), redisZ(math.Inf(1), member)).Err() }, "", true},
		"no score":         {func(b *bench) error { return b.rdb.ZRem(b.t.Context(), b.key("z"), member).Err() }, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				b.enqueue(delayqueue.Job{ID: id, Key: "k", Name: "the name"})
				behind := b.enqueue(delayqueue.Job{Key: "k"})
				require.NoError(t, c.damage(b))
				var r ran
				b.start(r.handle)
				last := b.enqueue(delayqueue.Job{Key: "k"})
				others := []string{b.enqueue(delayqueue.Job{Key: "other"}), b.enqueue(delayqueue.Job{})}

				for _, other := range others {
					b.reaches(other, delayqueue.StateDone)
				}
				if c.lost {
					return
				}
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
				deadLetters := b.list(delayqueue.StateDead)
				require.Len(t, deadLetters, 1)
				require.Equal(t, id, deadLetters[0].ID)
				require.Equal(t, s.Cause, deadLetters[0].Cause)
			})
		})
	}
}

func TestJunk_EntriesOfNoMessageAreQuarantined(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		junk := []string{"junk", "", " ", "\x00\xff\n", strings.Repeat("j", 10_000), "a b c"}
		for _, member := range junk {
			require.NoError(t, b.rdb.ZAdd(ctx, b.key("z"), redisZ(math.Inf(-1), member)).Err())
		}
		require.NoError(t, b.rdb.ZAdd(ctx, b.key("w"), redisZ(math.Inf(-1), "x y")).Err())
		var r ran
		b.start(r.handle, delayqueue.WithConcurrency(1))
		id := b.enqueue(delayqueue.Job{Key: "k"})
		b.reaches(id, delayqueue.StateDone)
		require.Equal(t, []string{id}, r.ids())
		for _, set := range []string{"z", "w", "f"} {
			redistest.Eventually(t, func() bool { return b.rdb.ZCard(ctx, b.key(set)).Val() == 0 }, set+" is empty")
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

func TestJunk_MessagesOutliveTheLossOfOneKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"r", "c", "e", "k", "x", "w"} {
		t.Run(key, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				for _, id := range []string{"a", "b", "c", "d"} {
					b.enqueue(delayqueue.Job{ID: id, Key: "k"})
				}
				running, goOn := make(chan struct{}), make(chan struct{})
				b.start(func(_ context.Context, m delayqueue.Message) error {
					if m.ID == "a" && m.Attempt == 1 {
						select {
						case <-running: // again: how often it was tried is lost
							return nil
						default:
						}
						close(running)
						<-goOn
					}
					return nil
				}, delayqueue.WithClaimLease(time.Second)) // an idle worker looks three times in it
				<-running
				require.NoError(t, b.rdb.Del(t.Context(), b.key(key)).Err())
				close(goOn)
				for _, id := range []string{"a", "b", "c", "d"} {
					b.reaches(id, delayqueue.StateDone)
				}
			})
		})
	}
}

func TestJunk_AKeyOfAnotherTypeIsAnErrorUntilItIsDeleted(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.enqueue(delayqueue.Job{ID: "a", Key: "k"})
		junk := b.key("w")
		require.NoError(t, b.rdb.Set(t.Context(), junk, "somebody else's", 0).Err())
		var r ran
		b.start(r.handle)
		_, err := b.queue.Stats(t.Context())
		require.ErrorIs(t, err, core.ErrUnavailable)
		require.ErrorContains(t, err, "WRONGTYPE")
		time.Sleep(50 * time.Millisecond)
		require.Empty(t, r.ids())
		require.Equal(t, "somebody else's", b.rdb.Get(t.Context(), junk).Val())
		require.NoError(t, b.rdb.Del(t.Context(), junk).Err())
		b.reaches("a", delayqueue.StateDone)
	})
}
