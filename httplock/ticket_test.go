package httplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func anyone(*http.Request, delayqueue.Status) bool { return true }

// fakeQueue answers as a queue with one message does.
type fakeQueue struct {
	state     delayqueue.State // empty: there is none
	principal string
	result    []byte
	err       error // of every call
	then      chan delayqueue.State
	waits     int
	asked     int
	cancelled int
}

func (q *fakeQueue) Status(_ context.Context, id string) (delayqueue.Status, error) {
	q.asked++
	if q.err != nil {
		return delayqueue.Status{}, q.err
	}
	if q.state == "" || id != testbed.TicketID {
		return delayqueue.Status{}, fmt.Errorf("status: %w", delayqueue.ErrNotFound)
	}
	enqueued := time.UnixMilli(1800000000000)
	return delayqueue.Status{
		ID: id, Name: testbed.Secret, Principal: q.principal, State: q.state, Attempts: 2, Conflicts: 3, Losses: 1,
		EnqueuedAt: enqueued, ExpiresAt: enqueued.Add(time.Minute), Cause: testbed.Secret,
	}, nil
}

// Wait returns when then, the state that the message comes to, is there.
func (q *fakeQueue) Wait(ctx context.Context, id string) (delayqueue.Status, error) {
	q.waits++
	select {
	case q.state = <-q.then:
		return q.Status(ctx, id)
	case <-ctx.Done():
		s, _ := q.Status(context.WithoutCancel(ctx), id)
		return s, ctx.Err()
	}
}

func (q *fakeQueue) Result(context.Context, string) ([]byte, error) {
	if q.state != delayqueue.StateDone && q.state != delayqueue.StateDead || q.result == nil {
		return nil, fmt.Errorf("result: %w", delayqueue.ErrNotFound)
	}
	return q.result, nil
}

func (q *fakeQueue) Cancel(context.Context, string) error {
	switch q.state {
	case delayqueue.StateQueued, delayqueue.StateCancelled:
		q.cancelled++
		return nil
	case delayqueue.StateRunning:
		return fmt.Errorf("cancel: %w", delayqueue.ErrRunning)
	default:
		return fmt.Errorf("cancel: %w", delayqueue.ErrEnded)
	}
}

const ticketPath = "/tickets/" + testbed.TicketID

var allStates = []delayqueue.State{
	delayqueue.StateQueued, delayqueue.StateRunning, delayqueue.StateDone, delayqueue.StateDead, delayqueue.StateExpired, delayqueue.StateCancelled,
}

func TestTicket_TellsItsState(t *testing.T) {
	for _, state := range allStates {
		open := state == delayqueue.StateQueued || state == delayqueue.StateRunning
		status, location := http.StatusOK, ""
		if state == delayqueue.StateDone {
			status, location = http.StatusSeeOther, testbed.TicketID+"/result"
		}
		h := httplock.TicketsOver(&fakeQueue{state: state}, anyone)
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			resp := testbed.Call(t, h, method, ticketPath, "")
			require.Equal(t, status, resp.Status)
			require.Equal(t, location, resp.Header.Get("Location"))
			require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
			require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
			require.Equal(t, open, resp.Header.Get("Retry-After") != "")
			if method == http.MethodHead {
				require.Empty(t, resp.Body)
				continue
			}
			require.JSONEq(t, fmt.Sprintf(`{"id":%q,"state":%q,"attempts":2,"conflicts":3,
				"enqueued_at":"2027-01-15T08:00:00.000Z","expires_at":"2027-01-15T08:01:00.000Z"}`, testbed.TicketID, state), resp.Body)
		}
	}
}

func TestTicket_IsCancelledWhileQueued(t *testing.T) {
	for state, kind := range map[delayqueue.State]string{
		delayqueue.StateQueued: "", delayqueue.StateCancelled: "", delayqueue.StateRunning: "ticket-running",
		delayqueue.StateDone: "ticket-ended", delayqueue.StateDead: "ticket-ended", delayqueue.StateExpired: "ticket-ended",
	} {
		q := &fakeQueue{state: state}
		resp := testbed.Call(t, httplock.TicketsOver(q, anyone), http.MethodDelete, ticketPath, "")
		if kind != "" {
			testbed.RequireProblem(t, resp, http.StatusConflict, kind, state == delayqueue.StateRunning)
			continue
		}
		require.Equal(t, testbed.Answer{Status: http.StatusNoContent, Header: http.Header{"Cache-Control": {"no-store"}}}, resp)
		require.Equal(t, 1, q.cancelled)
	}
}

func TestTicket_ShowsItsResult(t *testing.T) {
	stored, err := (&httplock.DecodedResult{
		Status: http.StatusTeapot, Header: http.Header{"Content-Type": {"text/x"}, "Link": {"<a>", "<b>"}}, Body: []byte("\x00short"),
	}).Encode()
	require.NoError(t, err)
	h := httplock.TicketsOver(&fakeQueue{state: delayqueue.StateDone, result: stored}, anyone)
	resp := testbed.Call(t, h, http.MethodGet, ticketPath+"/result", "")
	require.Equal(t, testbed.Answer{Status: http.StatusTeapot, Header: http.Header{
		"Content-Type": {"text/x"}, "Link": {"<a>", "<b>"}, "Content-Length": {"6"},
		"Cache-Control": {"no-store"}, "X-Content-Type-Options": {"nosniff"},
	}, Body: "\x00short"}, resp)
	head := testbed.Call(t, h, http.MethodHead, ticketPath+"/result", "")
	require.Equal(t, testbed.Answer{Status: resp.Status, Header: resp.Header}, head)

	junk := httplock.TicketsOver(&fakeQueue{state: delayqueue.StateDone, result: []byte(testbed.Secret)}, anyone)
	testbed.RequireProblem(t, testbed.Call(t, junk, http.MethodGet, ticketPath+"/result", ""), http.StatusNotFound, "no-such-ticket", false)
}

func TestTicket_TicketsThatAreNotTheClientsAreAll404(t *testing.T) {
	ofAnn := func(r *http.Request, s delayqueue.Status) bool { return s.Principal == r.Header.Get("X-User") }
	unknown := &fakeQueue{}
	handlers := map[string]http.Handler{
		"unknown":      httplock.TicketsOver(unknown, anyone),
		"no queue":     httplock.TicketHandler(nil, anyone),
		"no authorize": httplock.TicketHandler(new(delayqueue.Queue), nil),
	}
	anns := &fakeQueue{principal: "ann", result: []byte("x")}
	for _, state := range allStates {
		handlers["somebody else's, "+string(state)] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			anns.state = state
			httplock.TicketsOver(anns, ofAnn).ServeHTTP(w, r)
		})
	}
	want := testbed.Call(t, handlers["unknown"], http.MethodGet, ticketPath, "")
	testbed.RequireProblem(t, want, http.StatusNotFound, "no-such-ticket", false)
	require.Equal(t, 1, unknown.asked)
	same := func(name string, h http.Handler, method, path string) {
		t.Run(name+" "+method+" "+path, func(t *testing.T) {
			resp := testbed.Call(t, h, method, path, "")
			if method == http.MethodHead {
				require.Equal(t, testbed.Answer{Status: want.Status, Header: want.Header}, resp)
			} else {
				require.Equal(t, want, resp)
			}
		})
	}
	for name, h := range handlers {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodDelete} {
			same(name, h, method, ticketPath)
			if method != http.MethodDelete {
				same(name, h, method, ticketPath+"/result")
			}
		}
	}
	require.Zero(t, anns.cancelled)
	asked := unknown.asked
	for _, path := range []string{
		"/", "/tickets/", "/tickets/abc", ticketPath + "0", ticketPath + "/", ticketPath + "/results", "/tickets/result", "/result",
		"/tickets//result", "/tickets/0123456789ABCDEF0123456789ABCDEF", "/tickets/%3F%3F", "/tickets/" + strings.Repeat("?", 32),
		"/tickets/0123456789abcdef0123456789abcdeg", ticketPath + "/result/result", ticketPath + "%0a",
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			same("malformed", handlers["unknown"], method, path)
		}
	}
	require.Equal(t, asked, unknown.asked, "what cannot be an id is not asked for")

	// A result that is not there, although its ticket is.
	for _, state := range allStates {
		same("no result, "+string(state), httplock.TicketsOver(&fakeQueue{state: state}, anyone), http.MethodGet, ticketPath+"/result")
	}
}

func TestTicketErrors(t *testing.T) {
	over := func(err error) http.Handler { return httplock.TicketsOver(&fakeQueue{err: err}, anyone) }
	down, broken := over(fmt.Errorf("status: %w", core.ErrUnavailable)), over(errors.New(testbed.Secret))
	for method, detail := range map[string]string{
		http.MethodGet:    "The state of the ticket could not be read.",
		http.MethodDelete: "It could not be confirmed that the request was cancelled.",
	} {
		resp := testbed.Call(t, down, method, ticketPath, "")
		testbed.RequireProblem(t, resp, http.StatusServiceUnavailable, "unavailable", true)
		require.Contains(t, resp.Body, detail+" Try again later.")
		resp = testbed.Call(t, broken, method, ticketPath, "")
		testbed.RequireProblem(t, resp, http.StatusInternalServerError, "internal", false)
		require.Contains(t, resp.Body, detail)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodOptions, "FROB"} {
		resp := testbed.Call(t, down, method, ticketPath, "")
		require.Equal(t, "GET, HEAD, DELETE", resp.Header.Get("Allow"))
		testbed.RequireProblem(t, resp, http.StatusMethodNotAllowed, "method-not-allowed", false)
	}
	resp := testbed.Call(t, down, http.MethodDelete, ticketPath+"/result", "")
	require.Equal(t, "GET, HEAD", resp.Header.Get("Allow"))
	testbed.RequireProblem(t, resp, http.StatusMethodNotAllowed, "method-not-allowed", false)
}

// Wherever it is mounted, its redirect leads to the result.
func TestTicket_IsMountedAnywhere(t *testing.T) {
	stored, err := (&httplock.DecodedResult{Status: http.StatusCreated, Body: []byte("made")}).Encode()
	require.NoError(t, err)
	h := httplock.TicketsOver(&fakeQueue{state: delayqueue.StateDone, result: stored}, anyone)
	mux := http.NewServeMux()
	mux.Handle("/tickets/", h)
	stripped := http.NewServeMux()
	stripped.Handle("/v1/tickets/", http.StripPrefix("/v1/tickets/", h))
	halfStripped := http.NewServeMux()
	halfStripped.Handle("/v1/tickets/", http.StripPrefix("/v1/tickets", h))
	for name, test := range map[string]struct {
		h    http.Handler
		path string
	}{
		"alone": {h, "/"}, "mux": {mux, "/tickets/"},
		"stripped": {stripped, "/v1/tickets/"}, "half stripped": {halfStripped, "/v1/tickets/"},
		"behind a proxy": {http.StripPrefix("/outside", mux), "/outside/tickets/"},
	} {
		t.Run(name, func(t *testing.T) {
			url, client := testbed.Serve(t, test.h)
			for method, body := range map[string]string{http.MethodGet: "made", http.MethodHead: ""} {
				r := testbed.ToServer(t.Context(), t, url+test.path+testbed.TicketID, "")
				r.Method = method
				resp, err := testbed.Send(client, r)
				require.NoError(t, err)
				require.Equal(t, http.StatusCreated, resp.Status)
				require.Equal(t, body, resp.Body)
				require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
			}
			r := testbed.ToServer(t.Context(), t, url+test.path+testbed.TicketID, "")
			r.Method = http.MethodDelete
			resp, err := testbed.Send(client, r)
			require.NoError(t, err)
			testbed.RequireProblem(t, resp, http.StatusConflict, "ticket-ended", false)
		})
	}
}

// get asks for a ticket, with a preference.
func get(ctx context.Context, h http.Handler, path, prefer string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if prefer != "" {
		r.Header.Set("Prefer", prefer)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestTicket_WaitsAsItsClientPrefers(t *testing.T) {
	for _, test := range []struct {
		prefer  string
		applied string
		ended   bool          // before it was asked for
		ends    time.Duration // 0: never
		took    time.Duration
		status  int
	}{
		{prefer: "", took: 0, status: http.StatusOK},
		{prefer: "respond-async", took: 0, status: http.StatusOK},
		{prefer: "wait=junk", took: 0, status: http.StatusOK},
		{prefer: "wait=0", took: 0, status: http.StatusOK},
		{prefer: "wait=5", ended: true, took: 0, status: http.StatusSeeOther},
		{prefer: "wait=5", applied: "wait=5", took: 5 * time.Second, status: http.StatusOK},
		{prefer: "wait=5", applied: "wait=5", ends: 2 * time.Second, took: 2 * time.Second, status: http.StatusSeeOther},
		{prefer: "wait=86400", applied: "wait=30", took: 30 * time.Second, status: http.StatusOK},
	} {
		t.Run(fmt.Sprint(test.prefer, " ", test.ends, test.ended), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &fakeQueue{state: delayqueue.StateRunning, then: make(chan delayqueue.State, 1)}
				if test.ended {
					q.state = delayqueue.StateDone
				}
				if test.ends > 0 {
					time.AfterFunc(test.ends, func() { q.then <- delayqueue.StateDone })
				}
				began := time.Now()
				w := get(t.Context(), httplock.TicketsOver(q, anyone), ticketPath, test.prefer)
				require.Equal(t, test.took, time.Since(began))
				require.Equal(t, test.status, w.Code)
				require.Equal(t, test.applied, w.Header().Get("Preference-Applied"))
				require.Equal(t, "Prefer", w.Header().Get("Vary"))
			})
		})
	}
}

func TestTicket_ThatHasEndedOrIsNotTheClientsIsNotWaitedFor(t *testing.T) {
	for _, state := range []delayqueue.State{"", delayqueue.StateDone, delayqueue.StateDead} {
		q := &fakeQueue{state: state}
		get(t.Context(), httplock.TicketsOver(q, anyone), ticketPath, "wait=30")
		require.Zero(t, q.waits, state)
	}
	q := &fakeQueue{state: delayqueue.StateRunning}
	w := get(t.Context(), httplock.TicketsOver(q, func(*http.Request, delayqueue.Status) bool { return false }), ticketPath, "wait=30")
	require.Equal(t, http.StatusNotFound, w.Code)
	require.Zero(t, q.waits)
}

// A client that has left is not waited for.
func TestTicket_WhoseClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		get(ctx, httplock.TicketsOver(&fakeQueue{state: delayqueue.StateQueued}, anyone), ticketPath, "wait=30")
		require.Equal(t, time.Second, time.Since(began))
	})
}

// A server that shuts down keeps nobody waiting, over HTTP/1.1 and HTTP/2; another one that has the same handler
// does. The worker has all of the time that is left. It is long since it is one story.
func TestTicket_WaitsEndWhenTheServerShutsDown(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		release := d.Hold(t)
		defer release()
		d.handle(mustNotRun(t))
		location := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
		waiting := make(chan struct{}, 1000)
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			waiting <- struct{}{}
			d.mux.ServeHTTP(w, r)
		})
		type answer struct {
			testbed.Answer
			err error
		}
		const clients = 30
		wait := func(srv *httptest.Server) <-chan answer {
			answers := make(chan answer, clients)
			first, err := testbed.Send(srv.Client(), testbed.ToServer(t.Context(), t, srv.URL+"/tickets/", ""))
			require.NoError(t, err)
			require.Equal(t, http.StatusMethodNotAllowed, first.Status)
			<-waiting
			for range clients {
				r := testbed.ToServer(t.Context(), t, srv.URL+location, "")
				r.Method = http.MethodGet
				r.Header.Set("Prefer", "wait=30")
				go func() {
					resp, err := testbed.Send(srv.Client(), r)
					answers <- answer{resp, err}
				}()
			}
			for range clients {
				<-waiting
			}
			return answers
		}
		stays := httptest.NewServer(h)
		defer stays.Close()
		others := wait(stays)
		for _, http2 := range []bool{false, true} {
			srv := httptest.NewUnstartedServer(h)
			srv.EnableHTTP2 = http2
			srv.StartTLS()
			answers := wait(srv)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // net/http gives a new connection 5 s
			require.NoError(t, srv.Config.Shutdown(ctx))
			cancel()
			for range clients {
				got := <-answers
				require.NoError(t, got.err)
				require.Equal(t, http.StatusOK, got.Status)
				require.Contains(t, got.Body, `"queued"`)
			}
			srv.Close()
		}
		require.Empty(t, others)
		require.NoError(t, d.queue.Cancel(t.Context(), strings.TrimPrefix(location, "/tickets/")))
		for range clients {
			require.Contains(t, (<-others).Body, `"cancelled"`)
		}
	})
}

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
