package httplock_test

import (
	"encoding/json"
	"net/http"
	"path"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// saves is a service that coalesces saves, and shows tickets to those whose they are.
type saves struct{ *parkingSite }

func openSaves(t *testing.T, env *redistest.Env, opts ...httplock.Option) *saves {
	t.Helper()
	s := &saves{parkingSite: openParking(t, env)}
	s.guard = s.Locker.Guard(delayqueue.Coalesce(s.queue))
	s.mux = http.NewServeMux()
	s.mux.Handle("/tickets/", httplock.TicketHandler(s.queue, func(r *http.Request, st delayqueue.Status) bool {
		return st.Principal == r.Header.Get("User")
	}))
	s.handle(mustNotRun(t), opts...)
	return s
}

func byUser() httplock.Option {
	return sentBy(func(r *http.Request) (string, error) { return r.Header.Get("User"), nil },
		func(*http.Request, string) error { return nil })
}

// save sends a save, and returns its answer.
func (s *saves) save(t *testing.T, user, key, body string) testbed.Answer {
	t.Helper()
	r := testbed.Request(t, http.MethodPut, "/orders/7", body)
	r.Header.Set("User", user)
	if key != "" {
		r.Header.Set("Idempotency-Key", `"`+key+`"`)
	}
	return testbed.Do(s.mux, r)
}

// ticket is what a user sees of a ticket.
func (s *saves) ticket(t *testing.T, user, location string) (status int, state, by string) {
	t.Helper()
	r := testbed.Request(t, http.MethodGet, location, "")
	r.Header.Set("User", user)
	resp := testbed.Do(s.mux, r)
	var doc struct {
		State        string
		SupersededBy string `json:"superseded_by"`
	}
	require.NoError(t, json.Unmarshal([]byte(resp.Body), &doc))
	return resp.Status, doc.State, doc.SupersededBy
}

func (s *saves) hold(t *testing.T) *core.Lease {
	t.Helper()
	lease, err := s.Locker.TryAcquire(t.Context(), "order:7", core.LeaseTTL(time.Minute))
	require.NoError(t, err)
	return lease
}

func TestCoalesce_ATicketNamesItsSuccessorToItsOwnerAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		store, err := idempotency.New(redistest.Client(t, env.Client(t).Options()), idempotency.WithPrefix(env.Prefix))
		require.NoError(t, err)
		s := openSaves(t, env, byUser(), httplock.WithIdempotency(store))
		lease := s.hold(t)
		first := requireParked(t, s.save(t, "alice", "k1", "1"))
		second := requireParked(t, s.save(t, "alice", "k2", "2"))
		other := requireParked(t, s.save(t, "bob", "", "3"))
		require.Equal(t, first, requireParked(t, s.save(t, "alice", "k1", "1")), "it is the old ticket")
		status, state, by := s.ticket(t, "alice", first)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "superseded", state)
		require.Equal(t, path.Base(second), by)
		status, _, by = s.ticket(t, "bob", first)
		require.Equal(t, http.StatusNotFound, status)
		require.Empty(t, by)
		_, state, _ = s.ticket(t, "alice", second)
		require.Equal(t, "queued", state, "neither bob's nor the one that was sent again replaced it")
		_, state, _ = s.ticket(t, "bob", other)
		require.Equal(t, "queued", state)

		r := testbed.Request(t, http.MethodDelete, first, "")
		r.Header.Set("User", "alice")
		testbed.RequireProblem(t, testbed.Do(s.mux, r), http.StatusConflict, "ticket-ended", false)
		require.NoError(t, lease.Release(t.Context()))
	})
}

// Whoever replaced a request that has no principal may be anybody.
func TestCoalesce_AnAnonymousTicketNamesNobody(t *testing.T) {
	env := redistest.Embedded(t)
	s := openSaves(t, env)
	lease := s.hold(t)
	first := requireParked(t, s.save(t, "", "", "1"))
	requireParked(t, s.save(t, "", "", "2"))
	_, state, by := s.ticket(t, "", first)
	require.Equal(t, "superseded", state)
	require.Empty(t, by)
	require.NoError(t, lease.Release(t.Context()))
}
