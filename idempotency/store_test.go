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

// laws is what a Store promises. It is an error if one does not hold.
func laws(ctx context.Context, s *idempotency.Store, rdb redis.UniversalClient, prefix string) error {
	n := 0
	fresh := func() idempotency.Work {
		n++
		return idempotency.Work{Name: fmt.Sprintf("{w}%d-%d", n, rand.Uint64()), Fingerprint: "a"}
	}
	other := func(w idempotency.Work) idempotency.Work { w.Fingerprint = "b"; return w }
	var broken []error
	must := func(ok bool, law string) {
		if !ok {
			broken = append(broken, errors.New(law))
		}
	}
	begin := func(w idempotency.Work, fence int64) (string, error) {
		outcome, err := s.Begin(ctx, w, fence)
		return string(outcome), err
	}
	ticket := core.Ticket{ID: "t1", Queue: "ship", ExpiresAt: time.UnixMilli(1800000000123)}
	const fence = int64(1<<51 + 7) // of the size of a clock in µs

	w := fresh()
	outcome, err := begin(w, fence)
	must(outcome == "" && err == nil, "who begins first runs")
	outcome, err = begin(w, fence)
	must(outcome == "" && err == nil, "a lost reply does not keep the holder from running")
	_, err = begin(other(w), fence+1)
	must(errors.Is(err, idempotency.ErrMismatch), "other work is refused while the first is under way")
	_, err = s.Lookup(ctx, other(w))
	must(errors.Is(err, idempotency.ErrMismatch), "who looks for other work is told")
	must(errors.Is(s.Finish(ctx, other(w), fence, []byte("x")), idempotency.ErrMismatch), "other work is not what came of this one")
	must(errors.Is(s.Parked(ctx, other(w), ticket), idempotency.ErrMismatch), "other work is not where this one is parked")
	found, err := s.Lookup(ctx, w)
	must(err == nil && found.Outcome == nil && found.Ticket.ID == "", "unfinished work has no outcome")
	must(s.Finish(ctx, w, fence, []byte("a\x00\xff")) == nil, "the holder finishes")
	must(s.Finish(ctx, w, fence, []byte("a\x00\xff")) == nil, "a lost reply does not change that")
	outcome, err = begin(w, fence+1)
	must(outcome == "a\x00\xff" && err == nil, "finished work has its outcome, byte for byte")
	outcome, err = begin(w, fence-1)
	must(outcome == "a\x00\xff" && err == nil, "whatever the fence")
	must(s.Parked(ctx, w, ticket) == nil, "finished work may be said to be parked")
	found, err = s.Lookup(ctx, w)
	must(err == nil && string(found.Outcome) == "a\x00\xff" && found.Ticket.ID == "", "and is finished all the same")
	_, err = begin(other(w), fence+1)
	must(errors.Is(err, idempotency.ErrMismatch), "other work is refused when the first is finished")

	w = fresh()
	_, _ = begin(w, fence)
	outcome, err = begin(w, fence+1)
	must(outcome == "" && err == nil, "what was begun and not finished runs again")
	must(errors.Is(s.Finish(ctx, w, fence, []byte("stale")), idempotency.ErrStaleFence), "who was overtaken does not finish")
	_, err = begin(w, fence)
	must(errors.Is(err, idempotency.ErrStaleFence), "who was overtaken does not begin")
	must(s.Finish(ctx, w, fence+1, []byte("late")) == nil, "who overtook finishes")
	must(errors.Is(s.Finish(ctx, w, fence, []byte("stale")), idempotency.ErrStaleFence), "and is not overwritten")
	outcome, _ = begin(w, fence+2)
	must(outcome == "late", "its outcome counts")

	w = fresh()
	_, _ = begin(w, fence)
	must(rdb.Del(ctx, prefix+":idem{}:"+w.Name).Err() == nil, "the record has its name")
	must(s.Finish(ctx, w, fence, []byte("kept")) == nil, "work whose record is gone can be finished")
	outcome, err = begin(w, fence+1)
	must(outcome == "kept" && err == nil, "and is not done again")
	_, err = begin(other(w), fence+1)
	must(errors.Is(err, idempotency.ErrMismatch), "and binds its key")

	w = fresh()
	must(s.Parked(ctx, w, ticket) == nil, "work can be parked before it was begun")
	found, err = s.Lookup(ctx, w)
	must(err == nil && found.Ticket.ID == ticket.ID && found.Ticket.Queue == ticket.Queue &&
		found.Ticket.ExpiresAt.Equal(ticket.ExpiresAt), "and tells its ticket")
	_, err = begin(other(w), fence)
	must(errors.Is(err, idempotency.ErrMismatch), "parked work binds its key")
	outcome, err = begin(w, fence)
	must(outcome == "" && err == nil, "parked work runs")
	must(s.Finish(ctx, w, fence, []byte("x")) == nil, "and is finished")

	w = fresh()
	states := []func() error{ // unknown, parked, begun, done
		func() error { return nil },
		func() error { return s.Parked(ctx, w, ticket) },
		func() error { _, err := s.Begin(ctx, w, fence); return err },
		func() error { return s.Finish(ctx, w, fence, []byte("x")) },
	}
	var seen []idempotency.Record
	for i, come := range states {
		must(come() == nil, fmt.Sprintf("work comes to state %d", i))
		is, err := s.Lookup(ctx, w)
		must(err == nil, fmt.Sprintf("and is found in state %d", i))
		for was, record := range seen {
			forgotten, err := s.ForgetIf(ctx, w.Name, record)
			must(err == nil && !forgotten, fmt.Sprintf("what was seen in state %d is kept in state %d", was, i))
		}
		seen = append(seen, is)
	}
	for i := range states {
		w = fresh()
		for _, come := range states[:i+1] {
			_ = come()
		}
		forgotten, err := s.ForgetIf(ctx, w.Name, seen[i])
		must(err == nil && forgotten == (i > 0), fmt.Sprintf("what is still in state %d is forgotten", i))
		left, err := s.Lookup(ctx, w)
		must(err == nil && !left.Found, fmt.Sprintf("what was in state %d is gone", i))
	}

	for _, do := range []func(idempotency.Work) error{
		func(w idempotency.Work) error { _, err := s.Begin(ctx, w, fence); return err },
		func(w idempotency.Work) error { return s.Parked(ctx, w, ticket) },
		func(w idempotency.Work) error { return s.Finish(ctx, w, fence, []byte("x")) },
	} {
		w = fresh()
		name := prefix + ":idem{}:" + w.Name
		for range 2 { // the second one begins anew
			_ = do(w)
			left := rdb.PTTL(ctx, name).Val()
			must(left > 59*time.Minute && left <= time.Hour, "everything has the whole TTL")
			_ = rdb.PExpire(ctx, name, time.Minute).Err()
		}
	}
	return errors.Join(broken...)
}

func TestRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s, rdb := newStore(t, env, idempotency.WithTTL(time.Hour))
		require.NoError(t, laws(t.Context(), s, rdb, env.Prefix))
	})
}

// Names of records are spread over the nodes, and each script has one of them.
func TestStore_RecordsOnACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3, 0).Client(t)
	s, err := idempotency.New(rdb, idempotency.WithTTL(time.Hour))
	require.NoError(t, err)
	require.NoError(t, laws(t.Context(), s, rdb, "perkey"))
}

// Each mutant breaks one line of a script, and with it a law.
func TestStore_LawsCatchBrokenScripts(t *testing.T) { // not parallel: it breaks the scripts of all
	env := redistest.Embedded(t)
	s, rdb := newStore(t, env, idempotency.WithTTL(time.Hour))
	for _, m := range []struct{ script, old, new string }{
		{"begin", "was[1] and was[1] ~= ARGV[1]", "false"},
		{"begin", "if was[3] then", "if false then"},
		{"begin", "was[2] and tonumber(was[2]) > tonumber(ARGV[2])", "false"},
		{"begin", "> tonumber(ARGV[2])", ">= tonumber(ARGV[2])"},
		{"begin", "'fingerprint', ARGV[1], 'fence'", "'fence'"},
		{"begin", ", 'fence', ARGV[2])", ")"},
		{"begin", "redis.call('PEXPIRE', KEYS[1], ARGV[3])", ""},
		{"finish", "was[1] and was[1] ~= ARGV[1]", "false"},
		{"finish", "was[2] and tonumber(was[2]) > tonumber(ARGV[2])", "false"},
		{"finish", "> tonumber(ARGV[2])", ">= tonumber(ARGV[2])"},
		{"finish", "was[2] and", "not was[2] or"},
		{"finish", "'fingerprint', ARGV[1], 'fence'", "'fence'"},
		{"finish", ", 'outcome', ARGV[4])", ")"},
		{"finish", "'outcome', ARGV[4])\nredis.call('PEXPIRE', KEYS[1], ARGV[3])", "'outcome', ARGV[4])"},
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
		err := laws(t.Context(), s, rdb, env.Prefix)
		restore()
		assert.Error(t, err, "%s: %q for %q", m.script, m.new, m.old)
	}
	require.NoError(t, laws(t.Context(), s, rdb, env.Prefix))
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
