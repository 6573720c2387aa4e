package delayqueue

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// damages are what somebody can do around messages of a key so that these stood still for good, or ran twice: the attempts of one say that
// it runs, entries of no message stand before the head, or the claims of what runs are lost. Of each key they make the dead letters of these ids.
var damages = map[string]struct {
	runs, flag string
	strangers  []string
	dead       []string
	claims     bool
}{
	"a head runs":             {runs: "-0", flag: "r"},
	"a freed head runs":       {runs: "-0", flag: "R"},
	"one behind runs":         {runs: "-2", flag: "r"},
	"a keyless runs":          {runs: "-keyless", flag: "r"},
	"strangers":               {strangers: []string{"0000000000000000", "0000000000000001"}, dead: []string{"-stranger0", "-stranger1"}},
	"a stranger with a space": {strangers: []string{"0000000000000000a "}},
	"claims are lost":         {claims: true},
}

// Many workers run messages among which somebody has damaged some: each runs once, in its order, a lease later if its claim is nobody's; somebody's entries end as dead letters.
func TestDamage_StandsStillForNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name := range damages {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				own := *env
				own.Prefix += strings.ReplaceAll(name, " ", "-")
				require.NoError(t, playDamage(t, &own, name))
			})
		}
	})
}

// playDamage damages a message of each of some keys, and returns what stands still or ran out of its order.
func playDamage(t *testing.T, env *redistest.Env, damage string, hooks ...redis.Hook) error {
	t.Helper()
	const keys, each, workers, lease = 6, 5, 4, 2 * time.Second
	q, d := hookedQueue(t, env, "q", hooks), damages[damage]
	rdb, base := q.rdb, q.manifests.partitions[0].Keys
	want, dead := map[string][]string{}, []string{}
	for k := range keys {
		key := fmt.Sprint("k", k)
		enqueueTest(t, q, key+"-keyless", "")
		for i := range each {
			id := fmt.Sprint(key, "-", i)
			if enqueueTest(t, q, id, key); !slices.Contains(d.dead, id[len(key):]) {
				want[key] = append(want[key], id)
			}
		}
		if d.runs != "" {
			require.NoError(t, rdb.HSet(t.Context(), base[store.KeyAttempts], key+d.runs, d.flag+"------1 0 0 0 nobody ").Err())
		}
		for i, number := range d.strangers {
			require.NoError(t, rdb.ZAdd(t.Context(), base[store.KeyFIFOs], scored(0, fmt.Sprint(key, "\n", number, key, "-stranger", i))).Err())
		}
		for _, id := range d.dead {
			dead = append(dead, key+id)
		}
	}
	var mu sync.Mutex
	ran := map[string][]string{}
	inside, gate := make(chan string, 100), make(chan struct{})
	opened := sync.OnceFunc(func() { close(gate) })
	if !d.claims {
		opened()
	}
	for range workers {
		its := hookedQueue(t, env, "q", hooks)
		w, err := NewWorker(its, lockerTest(t, its), func(_ context.Context, m Message) error {
			inside <- m.ID
			<-gate
			mu.Lock()
			defer mu.Unlock()
			ran[m.Key] = append(ran[m.Key], m.ID)
			return nil
		}, WithLogger(slog.New(slog.DiscardHandler)), WithClaimLease(lease))
		require.NoError(t, err)
		require.NoError(t, w.Start())
		t.Cleanup(func() {
			opened()
			assert.NoError(t, w.Stop(context.Background()))
		})
	}
	if d.claims {
		for range 2 * keys {
			<-inside
		}
		require.NoError(t, rdb.Del(t.Context(), base[store.KeyRunning]).Err())
		require.NoError(t, q.Pause(t.Context(), time.Hour))
		for k := range keys { // another one that ends makes no other due
			key := fmt.Sprint("k", k)
			require.NoError(t, q.Cancel(t.Context(), key+"-4"))
			want[key] = want[key][:each-1]
		}
		if n := rdb.ZCard(t.Context(), base[store.KeyWaiting]).Val(); n > 0 {
			return violated("%d that run are due", n)
		}
		require.NoError(t, q.Resume(t.Context()))
		for k := range keys { // each is due at once, and joins the FIFO of its key
			key := fmt.Sprint("k", k)
			enqueueJob(t, q, Job{ID: key + "-late", Key: key, Delay: time.Millisecond, MaxAge: time.Hour})
			want[key] = append(want[key], key+"-late")
		}
		redistest.Eventually(t, func() bool { return rdb.ZCard(t.Context(), base[store.KeyWaiting]).Val() == 0 }, "they do not join")
		opened()
	}
	if err := allEnd(t, q); err != nil {
		return err
	}
	for _, id := range dead {
		e := of(q.Peek(t.Context(), id))(t)
		if e.State != StateDead || !strings.HasPrefix(e.Cause, "quarantined: ") {
			return violated("%q is %s: %s", id, e.State, e.Cause)
		}
	}
	left := of(rdb.HGet(t.Context(), base[store.KeyCounts], "bytes").Int())(t)
	if n := rdb.ZCard(t.Context(), base[store.KeyDead]).Val(); int(n) != len(dead) || n == 0 && left != 0 {
		return violated("%d are dead, and what is open has %d bytes", n, left)
	}
	for k := 0; k < keys && d.runs != ""; k++ {
		e := of(q.Peek(t.Context(), fmt.Sprint("k", k, d.runs)))(t)
		if e.State != StateDone || e.Losses != 1 {
			return violated("%q is %s, after %d losses", e.ID, e.State, e.Losses)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for key, ids := range want {
		if !slices.Equal(ids, ran[key]) {
			return violated("of %s ran %q, and should have run %q", key, ran[key], ids)
		}
	}
	return nil
}

// allEnd waits until nothing is queued or runs, or nobody would look at what is.
func allEnd(t *testing.T, q *Queue) error {
	t.Helper()
	keys := q.manifests.partitions[0].Keys
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		tx := q.rdb.TxPipeline()
		messages, dead := tx.HLen(t.Context(), keys[store.KeyMessages]), tx.ZCard(t.Context(), keys[store.KeyDead])
		due, running := tx.ZCard(t.Context(), keys[store.KeyWaiting]), tx.ZCard(t.Context(), keys[store.KeyRunning])
		require.NoError(t, errOf(tx.Exec(t.Context())))
		switch queued := messages.Val() - dead.Val(); {
		case queued == 0:
			return nil
		case due.Val() == 0 && running.Val() == 0:
			return violated("%d messages stand still", queued)
		}
		require.True(t, time.Now().Before(end), "messages do not end")
	}
}

func TestDamage_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		damage string
		mutant
	}{
		{"a head runs", mutant{"what runs nowhere is dropped", "", "        add(RUNNING, member, till)\n", ""}},
		{"one behind runs", mutant{"what runs nowhere is run", "", "    if is_running(state) then\n      remove(WAITING, member)", "    if false then\n      remove(WAITING, member)"}},
		{"claims are lost", mutant{"what runs is due", "", "if not is_running(redis.call('HGET', ATTEMPTS, id_at(head, key))) then", "if true then"}},
		{"a stranger with a space", mutant{"what no member names stays", "", "            remove(FIFOS, first)\n", ""}},
		{"strangers", mutant{"nobody looks at a stranger", "", "strays[key] and 'ended' or nil", "nil"}},
		{"strangers", mutant{"what is behind a stranger goes to the end", "", "strays[key] and redis.call('ZSCORE', FIFOS,", "false and redis.call('ZSCORE', FIFOS,"}},
	} {
		requireCaught(t, func(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
			return playDamage(t, env, c.damage, hooks...)
		}, []mutant{c.mutant})
	}
}
