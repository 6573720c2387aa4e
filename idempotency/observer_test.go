package idempotency_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// ledger keeps what it is told, and panics if it is to.
type ledger struct {
	idempotency.NopObserver
	events []idempotency.Event
	panics bool
}

func (l *ledger) OnEvent(_ context.Context, e idempotency.Event) {
	if l.events = append(l.events, e); l.panics {
		panic("the observer's")
	}
}

// take returns the kinds that were told since the last call.
func (l *ledger) take() (kinds []idempotency.EventKind) {
	for _, e := range l.events {
		kinds = append(kinds, e.Kind)
	}
	l.events = nil
	return kinds
}

func TestObserver_IsToldWhatEachCallEndsWith(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := &ledger{}
		s, rdb := newStore(t, env, idempotency.WithObserver(l))
		ctx := t.Context()
		w, other := idempotency.Work{Name: "w", Fingerprint: "a"}, idempotency.Work{Name: "w", Fingerprint: "b"}
		ticket := core.Ticket{ID: "t", Queue: "q", ExpiresAt: time.Now().Add(time.Minute)}
		for _, step := range []struct {
			what string
			do   func() error
			want []idempotency.EventKind
			err  error
		}{
			{"nothing is found", func() error { _, err := s.Lookup(ctx, w); return err }, nil, nil},
			{"nothing is forgotten", func() error { _, err := s.Forget(ctx, "w"); return err }, nil, nil},
			{"parked", func() error { return s.Parked(ctx, w, ticket) }, []idempotency.EventKind{"parked"}, nil},
			{"its ticket", func() error { _, err := s.Lookup(ctx, w); return err }, []idempotency.EventKind{"replayed"}, nil},
			{"the ticket expires", func() error { ticket.ExpiresAt = time.Now(); return s.Parked(ctx, w, ticket) }, []idempotency.EventKind{"parked"}, nil},
			{"it is not begun", func() error { _, err := s.Lookup(ctx, w); return err }, nil, nil},
			{"begun", func() error { _, err := s.Begin(ctx, w, 7); return err }, []idempotency.EventKind{"begun"}, nil},
			{"in progress", func() error { _, err := s.Lookup(ctx, w); return err }, []idempotency.EventKind{"in_progress"}, nil},
			{"an operator looks", func() error { _, err := s.Lookup(ctx, idempotency.Work{Name: "w"}); return err }, nil, nil},
			{"stale_fence", func() error { return s.Finish(ctx, w, 6, []byte("x")) }, []idempotency.EventKind{"stale_fence"}, idempotency.ErrStaleFence},
			{"stored", func() error { return s.Finish(ctx, w, 7, []byte("x")) }, []idempotency.EventKind{"stored"}, nil},
			{"found", func() error { _, err := s.Lookup(ctx, w); return err }, []idempotency.EventKind{"replayed"}, nil},
			{"not run again", func() error { _, err := s.Begin(ctx, w, 8); return err }, []idempotency.EventKind{"replayed"}, nil},
			{"other work", func() error { _, err := s.Begin(ctx, other, 8); return err }, []idempotency.EventKind{"mismatch"}, idempotency.ErrMismatch},
			{"other work, found", func() error { _, err := s.Lookup(ctx, other); return err }, []idempotency.EventKind{"mismatch"}, idempotency.ErrMismatch},
			{"forgotten", func() error { _, err := s.Forget(ctx, "w"); return err }, []idempotency.EventKind{"forgotten"}, nil},
			{"junk", func() error {
				require.NoError(t, rdb.Set(ctx, env.Prefix+":idem{}:w", "junk", time.Minute).Err())
				_, err := s.Begin(ctx, w, 9)
				return err
			}, []idempotency.EventKind{"error"}, core.ErrUnavailable},
		} {
			require.ErrorIs(t, step.do(), step.err, step.what)
			for _, e := range l.events {
				require.Equal(t, "w", e.Name)
				require.ErrorIs(t, e.Err, step.err, step.what)
			}
			require.Equal(t, step.want, l.take(), step.what)
		}
	})
}

func TestObserver_PanicIsLogged(t *testing.T) { // not parallel: it looks at slog's default
	said := testbed.CaptureLog(t)
	s, _ := newStore(t, redistest.Embedded(t), idempotency.WithObserver(&ledger{panics: true}))
	_, err := s.Begin(t.Context(), idempotency.Work{Name: "w", Fingerprint: "a"}, 1)
	require.NoError(t, err)
	require.Contains(t, said.String(), "the observer panicked")
	require.Contains(t, said.String(), slog.LevelError.String())
}

func TestLookup_FindsARequestByWhatIsKnownOfIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s, _ := newStore(t, env)
		ctx, name := t.Context(), idempotency.NameOf("POST /pay", "alice", "k")
		for _, other := range []string{idempotency.NameOf("POST /pay", "bob", "k"), idempotency.NameOf("POST /paya", "lice", "k"), idempotency.NameOf("POST /pay", "alice", "")} {
			require.NotEqual(t, name, other)
		}
		whatever := idempotency.Work{Name: name}
		found, err := s.Lookup(ctx, whatever)
		require.NoError(t, err)
		require.Equal(t, idempotency.Record{}, found)

		w := idempotency.Work{Name: name, Fingerprint: "a"}
		_, err = s.Begin(ctx, w, 1)
		require.NoError(t, err)
		found, err = s.Lookup(ctx, whatever)
		require.NoError(t, err)
		require.Equal(t, idempotency.Record{Found: true, Begun: true}, found)
		require.NoError(t, s.Finish(ctx, w, 1, []byte("x")))
		found, err = s.Lookup(ctx, whatever)
		require.NoError(t, err)
		require.Equal(t, idempotency.Record{Found: true, Begun: true, Outcome: []byte("x")}, found)

		forgotten, err := s.Forget(ctx, name)
		require.NoError(t, err)
		require.True(t, forgotten)
		forgotten, err = s.Forget(ctx, name)
		require.NoError(t, err)
		require.False(t, forgotten)
		outcome, err := s.Begin(ctx, idempotency.Work{Name: name, Fingerprint: "b"}, 1)
		require.NoError(t, err)
		require.Nil(t, outcome, "it runs again, and its key is free for other work")
	})
}

func TestForget_TheSmallestRights(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := redistest.Rights(t, "idempotency.Store.Forget")
	redistest.AddUser(t, rdb, "operator", rights)
	s, err := idempotency.New(redistest.Client(t, &redis.Options{Addr: rdb.Options().Addr, Username: "operator", Password: redistest.Password}))
	require.NoError(t, err)
	_, err = s.Forget(t.Context(), "w")
	require.NoError(t, err)

	redistest.AddUser(t, rdb, "careful", redistest.Rights(t, "Idempotency-Keys", "idempotency.Store.Forget"))
	s, err = idempotency.New(redistest.Client(t, &redis.Options{Addr: rdb.Options().Addr, Username: "careful", Password: redistest.Password}))
	require.NoError(t, err)
	w := idempotency.Work{Name: "w", Fingerprint: "a"}
	_, err = s.Begin(t.Context(), w, 1)
	require.NoError(t, err)
	record, err := s.Lookup(t.Context(), w)
	require.NoError(t, err)
	forgotten, err := s.ForgetIf(t.Context(), "w", record)
	require.NoError(t, err)
	require.True(t, forgotten)
	require.Empty(t, redistest.Denied(t, rdb), "nothing more was asked for")
	redistest.RequireUsed(t, rdb, rights, nil)
}
