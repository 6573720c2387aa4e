package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/along"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func newStore(t testing.TB, env *redistest.Env, opts ...idempotency.Option) (*idempotency.Store, *redis.Client) {
	t.Helper()
	rdb := env.Client(t)
	s, err := idempotency.New(rdb, append([]idempotency.Option{idempotency.WithPrefix(env.Prefix)}, opts...)...)
	require.NoError(t, err)
	return s, rdb
}

// laws checks what a Store promises.
type laws struct {
	ctx    context.Context
	store  *idempotency.Store
	rdb    redis.UniversalClient
	prefix string
	n      int
	broken []error
}

const lawFence = int64(1<<51 + 7) // of the size of a clock in µs

var lawTicket = core.Ticket{ID: "t1", Queue: "ship", ExpiresAt: time.UnixMilli(1800000000123)}

// checkLaws returns an error if a law does not hold.
func checkLaws(ctx context.Context, s *idempotency.Store, rdb redis.UniversalClient, prefix string) error {
	l := &laws{ctx: ctx, store: s, rdb: rdb, prefix: prefix}
	l.ofOneWork()
	l.ofStaleFences()
	l.ofLostRecords()
	l.ofParkedWork()
	l.ofForgetting()
	l.ofTTLs()
	l.ofLocks()
	return errors.Join(l.broken...)
}

func (l *laws) must(ok bool, law string) {
	if !ok {
		l.broken = append(l.broken, errors.New(law))
	}
}

func (l *laws) fresh() idempotency.Work {
	l.n++
	return idempotency.Work{Name: fmt.Sprintf("{w}%d-%d", l.n, rand.Uint64()), Fingerprint: "a"}
}

func other(w idempotency.Work) idempotency.Work { w.Fingerprint = "b"; return w }

func (l *laws) begin(w idempotency.Work, fence int64) (string, error) {
	outcome, err := l.store.Begin(l.ctx, w, fence)
	return string(outcome), err
}

func (l *laws) ofOneWork() {
	w := l.fresh()
	outcome, err := l.begin(w, lawFence)
	l.must(outcome == "" && err == nil, "who begins first runs")
	outcome, err = l.begin(w, lawFence)
	l.must(outcome == "" && err == nil, "a lost reply does not keep the holder from running")
	_, err = l.begin(other(w), lawFence+1)
	l.must(errors.Is(err, idempotency.ErrMismatch), "other work is refused while the first is under way")
	_, err = l.store.Lookup(l.ctx, other(w))
	l.must(errors.Is(err, idempotency.ErrMismatch), "who looks for other work is told")
	l.must(errors.Is(l.store.Finish(l.ctx, other(w), lawFence, []byte("x")), idempotency.ErrMismatch), "other work is not what came of this one")
	l.must(errors.Is(l.store.Parked(l.ctx, other(w), lawTicket), idempotency.ErrMismatch), "other work is not where this one is parked")
	found, err := l.store.Lookup(l.ctx, w)
	l.must(err == nil && found.Outcome == nil && found.Ticket.ID == "", "unfinished work has no outcome")
	l.must(l.store.Finish(l.ctx, w, lawFence, []byte("a\x00\xff")) == nil, "the holder finishes")
	l.must(l.store.Finish(l.ctx, w, lawFence, []byte("a\x00\xff")) == nil, "a lost reply does not change that")
	outcome, err = l.begin(w, lawFence+1)
	l.must(outcome == "a\x00\xff" && err == nil, "finished work has its outcome, byte for byte")
	outcome, err = l.begin(w, lawFence-1)
	l.must(outcome == "a\x00\xff" && err == nil, "whatever the lawFence")
	l.must(l.store.Parked(l.ctx, w, lawTicket) == nil, "finished work may be said to be parked")
	found, err = l.store.Lookup(l.ctx, w)
	l.must(err == nil && string(found.Outcome) == "a\x00\xff" && found.Ticket.ID == "", "and is finished all the same")
	_, err = l.begin(other(w), lawFence+1)
	l.must(errors.Is(err, idempotency.ErrMismatch), "other work is refused when the first is finished")
}

func (l *laws) ofStaleFences() {
	w := l.fresh()
	_, _ = l.begin(w, lawFence)
	outcome, err := l.begin(w, lawFence+1)
	l.must(outcome == "" && err == nil, "what was begun and not finished runs again")
	l.must(errors.Is(l.store.Finish(l.ctx, w, lawFence, []byte("stale")), idempotency.ErrStaleFence), "a holder with a smaller fence does not finish")
	_, err = l.begin(w, lawFence)
	l.must(errors.Is(err, idempotency.ErrStaleFence), "a holder with a smaller fence does not begin")
	l.must(l.store.Finish(l.ctx, w, lawFence+1, []byte("late")) == nil, "the one with the greater fence finishes")
	l.must(errors.Is(l.store.Finish(l.ctx, w, lawFence, []byte("stale")), idempotency.ErrStaleFence), "and is not overwritten")
	outcome, _ = l.begin(w, lawFence+2)
	l.must(outcome == "late", "its outcome counts")
}

func (l *laws) ofLostRecords() {
	w := l.fresh()
	_, _ = l.begin(w, lawFence)
	l.must(l.rdb.Del(l.ctx, l.prefix+":idem{}:"+w.Name).Err() == nil, "the record has its name")
	l.must(l.store.Finish(l.ctx, w, lawFence, []byte("kept")) == nil, "work whose record is gone can be finished")
	outcome, err := l.begin(w, lawFence+1)
	l.must(outcome == "kept" && err == nil, "and is not done again")
	_, err = l.begin(other(w), lawFence+1)
	l.must(errors.Is(err, idempotency.ErrMismatch), "and binds its key")
}

func (l *laws) ofParkedWork() {
	w := l.fresh()
	l.must(l.store.Parked(l.ctx, w, lawTicket) == nil, "work can be parked before it was begun")
	found, err := l.store.Lookup(l.ctx, w)
	l.must(err == nil && found.Ticket.ID == lawTicket.ID && found.Ticket.Queue == lawTicket.Queue &&
		found.Ticket.ExpiresAt.Equal(lawTicket.ExpiresAt), "and tells its lawTicket")
	_, err = l.begin(other(w), lawFence)
	l.must(errors.Is(err, idempotency.ErrMismatch), "parked work binds its key")
	outcome, err := l.begin(w, lawFence)
	l.must(outcome == "" && err == nil, "parked work runs")
	l.must(l.store.Finish(l.ctx, w, lawFence, []byte("x")) == nil, "and is finished")
}

func (l *laws) ofForgetting() {
	w := l.fresh()
	states := []func() error{ // unknown, parked, begun, done
		func() error { return nil },
		func() error { return l.store.Parked(l.ctx, w, lawTicket) },
		func() error { _, err := l.store.Begin(l.ctx, w, lawFence); return err },
		func() error { return l.store.Finish(l.ctx, w, lawFence, []byte("x")) },
	}
	var seen []idempotency.Record
	for i, come := range states {
		l.must(come() == nil, fmt.Sprintf("work comes to state %d", i))
		is, err := l.store.Lookup(l.ctx, w)
		l.must(err == nil, fmt.Sprintf("and is found in state %d", i))
		for was, record := range seen {
			forgotten, err := l.store.ForgetIf(l.ctx, w.Name, record)
			l.must(err == nil && !forgotten, fmt.Sprintf("what was seen in state %d is kept in state %d", was, i))
		}
		seen = append(seen, is)
	}
	for i := range states {
		w = l.fresh()
		for _, come := range states[:i+1] {
			_ = come()
		}
		forgotten, err := l.store.ForgetIf(l.ctx, w.Name, seen[i])
		l.must(err == nil && forgotten == (i > 0), fmt.Sprintf("what is still in state %d is forgotten", i))
		left, err := l.store.Lookup(l.ctx, w)
		l.must(err == nil && !left.Found, fmt.Sprintf("what was in state %d is gone", i))
	}
}

// Work that goes along with its lock's commands begins under the fence of a thin record of its token, and of no other.
func (l *laws) ofLocks() {
	if _, cluster := l.rdb.(*redis.ClusterClient); cluster {
		return // the lock and the record are on two nodes
	}
	w, lock := l.fresh(), l.prefix+":lock{}:law"
	along := func(token string) along.Work {
		ride := along.Of(l.store, w.Name, w.Fingerprint)
		begun := ride.Acquire(l.ctx, lock, token)
		_ = l.rdb.Process(l.ctx, begun)
		ride.Acquired(begun)
		return ride
	}
	_ = l.store.Parked(l.ctx, l.fresh(), lawTicket)
	_, _ = l.begin(l.fresh(), lawFence) // Redis knows the script
	along("1:a")
	l.must(l.rdb.Set(l.ctx, lock, "pk2 1:a 12 x", time.Minute).Err() == nil, "a lock is held")
	along("1:b")
	found, err := l.store.Lookup(l.ctx, w)
	l.must(err == nil && !found.Found, "work whose lock is not held is not begun")
	ride := along("1:a")
	found, _ = l.store.Lookup(l.ctx, w)
	l.must(found.Begun, "work whose lock is held is")
	_, err = ride.Begin(l.ctx, 12)
	l.must(err == nil && ride.Finish(l.ctx, 12, []byte("x")) == nil, "and its holder learns that")
	finished := ride.Release(l.ctx)
	if l.must(finished != nil, "and finishes it along with the release"); finished == nil {
		return
	}
	_ = l.rdb.Process(l.ctx, finished)
	ride.Released(finished)
	l.must(ride.Finished(l.ctx) == nil, "and learns that")
	outcome, _ := along("1:a").Begin(l.ctx, 13)
	l.must(outcome != nil, "work that was done is not done again")
	w = l.fresh()
	ride = along("1:a")
	_, err = ride.Begin(l.ctx, 13)
	l.must(err == nil && ride.Finish(l.ctx, 13, []byte("x")) == nil && ride.Release(l.ctx) == nil, "a holder with another fence does it by itself")
	l.rdb.Del(l.ctx, lock)
}

func (l *laws) ofTTLs() {
	for _, do := range []func(idempotency.Work) error{
		func(w idempotency.Work) error { _, err := l.store.Begin(l.ctx, w, lawFence); return err },
		func(w idempotency.Work) error { return l.store.Parked(l.ctx, w, lawTicket) },
		func(w idempotency.Work) error { return l.store.Finish(l.ctx, w, lawFence, []byte("x")) },
	} {
		w := l.fresh()
		name := l.prefix + ":idem{}:" + w.Name
		for range 2 { // the second one begins anew
			_ = do(w)
			left := l.rdb.PTTL(l.ctx, name).Val()
			l.must(left > 59*time.Minute && left <= time.Hour, "everything has the whole TTL")
			_ = l.rdb.PExpire(l.ctx, name, time.Minute).Err()
		}
	}
}

func TestRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s, rdb := newStore(t, env, idempotency.WithTTL(time.Hour))
		require.NoError(t, checkLaws(t.Context(), s, rdb, env.Prefix))
	})
}

// Names of records are spread over the nodes, and each script has one of them.
func TestStore_RecordsOnACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3, 0).Client(t)
	s, err := idempotency.New(rdb, idempotency.WithTTL(time.Hour))
	require.NoError(t, err)
	require.NoError(t, checkLaws(t.Context(), s, rdb, "perkey"))
}

// Each mutant breaks one line of a script, and with it a law.
func TestStore_LawsCatchBrokenScripts(t *testing.T) { // not parallel: it breaks the scripts of all
	env := redistest.Embedded(t)
	s, rdb := newStore(t, env, idempotency.WithTTL(time.Hour))
	for _, m := range []struct{ script, old, new string }{
		{"begin", "was[1] and was[1] ~= ARGV[1]", "false"},
		{"begin", "if was[3] then", "if false then"},
		{"begin", "was[2] and tonumber(was[2]) > tonumber(fence)", "false"},
		{"begin", "> tonumber(fence)", ">= tonumber(fence)"},
		{"begin", "'fingerprint', ARGV[1], 'fence'", "'fence'"},
		{"begin", ", 'fence', fence)", ")"},
		{"begin", "string.sub(lock, 1, #thin) == thin and ", ""},
		{"begin", "string.match(lock, '^%d+', #thin + 1)", "'1'"},
		{"begin", "redis.call('PEXPIRE', KEYS[1], ARGV[3])", ""},
		{"finish", "was[1] and was[1] ~= ARGV[1]", "false"},
		{"finish", "was[2] and tonumber(was[2]) > tonumber(ARGV[2])", "false"},
		{"finish", "> tonumber(ARGV[2])", ">= tonumber(ARGV[2])"},
		{"finish", "was[2] and", "not was[2] or"},
		{"finish", "'fingerprint', ARGV[1], 'fence'", "'fence'"},
		{"finish", ", 'outcome', ARGV[4])", ")"},
		{"finish", "if not there then", "if false then"},
		{"finish", "redis.call('PEXPIRE', KEYS[1], ARGV[3]) == 1", "true"},
		{"parked", "was[1] and was[1] ~= ARGV[1]", "false"},
		{"parked", "if not was[2] then", "if true then"},
		{"parked", "'fingerprint', ARGV[1], 'ticket'", "'ticket'"},
		{"parked", "  redis.call('PEXPIRE', KEYS[1], ARGV[2])\n", ""},
		{"forget", "~= ARGV[1]", "== 'never'"},
		{"forget", "~= ARGV[2]", "== 'never'"},
		{"forget", "redis.call('DEL', KEYS[1])", "1"},
	} {
		source := idempotency.Scripts()[m.script]
		require.Equal(t, 1, strings.Count(source, m.old), "%s: %s", m.script, m.old)
		restore := idempotency.Break(m.script, strings.Replace(source, m.old, m.new, 1))
		err := checkLaws(t.Context(), s, rdb, env.Prefix)
		restore()
		assert.Error(t, err, "%s: %q for %q", m.script, m.new, m.old)
	}
	require.NoError(t, checkLaws(t.Context(), s, rdb, env.Prefix))
}

func TestStore_AFullRedisKeepsOutcomesOfWhatWasBegun(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
	s, err := idempotency.New(rdb)
	require.NoError(t, err)
	w := idempotency.Work{Name: "w", Fingerprint: "a"}
	_, err = s.Begin(t.Context(), w, 1)
	require.NoError(t, err)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.NoError(t, s.Finish(t.Context(), w, 1, []byte("done")))
	_, err = s.Begin(t.Context(), idempotency.Work{Name: "v", Fingerprint: "a"}, 1)
	require.ErrorIs(t, err, core.ErrUnavailable)
	outcome, err := s.Begin(t.Context(), w, 2)
	require.NoError(t, err)
	require.Equal(t, "done", string(outcome))
}

func TestStore_ErrorsAreToldApart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr, MaxRetries: -1, DialerRetries: 1})
	s, err := idempotency.New(rdb)
	require.NoError(t, err)
	w := idempotency.Work{Name: "w", Fingerprint: "a"}
	each := func(ctx context.Context, check func(error)) {
		_, err := s.Begin(ctx, w, 1)
		check(err)
		check(s.Finish(ctx, w, 1, []byte("x")))
		check(s.Parked(ctx, w, core.Ticket{ID: "t"}))
		_, err = s.Lookup(ctx, w)
		check(err)
	}
	gone, leave := context.WithCancelCause(t.Context())
	leave(errors.New("left"))
	each(gone, func(err error) {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "left")
		require.NotErrorIs(t, err, core.ErrUnavailable)
	})
	require.NoError(t, rdb.Set(t.Context(), "perkey:idem{}:w", "junk", 0).Err())
	each(t.Context(), func(err error) { require.ErrorIs(t, err, core.ErrUnavailable) })
	require.NoError(t, rdb.Del(t.Context(), "perkey:idem{}:w").Err())
	require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
	each(t.Context(), func(err error) { require.NoError(t, err) })
	server.Kill()
	each(t.Context(), func(err error) { require.ErrorIs(t, err, core.ErrUnavailable) })
}

func TestStore_MistakesAreErrorsAtConstruction(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1"})
	_, err := idempotency.New(nil)
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = idempotency.New((*redis.Client)(nil))
	require.ErrorIs(t, err, core.ErrInvalidOption)
	for name, opt := range map[string]idempotency.Option{
		"nil": nil, "no prefix": idempotency.WithPrefix(""), "braces": idempotency.WithPrefix("a{b}"),
		"no TTL": idempotency.WithTTL(0), "negative": idempotency.WithTTL(-1), "long": idempotency.WithTTL(idempotency.MaxTTL + 1),
	} {
		_, err := idempotency.New(rdb, opt)
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
	}
}

func TestACL_TheSmallestRightsOfAStore(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := redistest.Rights(t, "Idempotency-Keys")
	redistest.AddUser(t, rdb, "store", rights)
	limited := redistest.Client(t, &redis.Options{Addr: rdb.Options().Addr, Username: "store", Password: redistest.Password})
	s, err := idempotency.New(limited)
	require.NoError(t, err)
	w := idempotency.Work{Name: "w", Fingerprint: "a"}
	_, err = s.Begin(t.Context(), w, 1)
	require.NoError(t, err)
	require.NoError(t, s.Parked(t.Context(), w, core.Ticket{ID: "t"}))
	require.NoError(t, s.Finish(t.Context(), w, 1, []byte("x")))
	_, err = s.Lookup(t.Context(), w)
	require.NoError(t, err)
	require.Empty(t, redistest.Denied(t, rdb), "nothing more was asked for")
	redistest.RequireUsed(t, rdb, rights, nil)
}
