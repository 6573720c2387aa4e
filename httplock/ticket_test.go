package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
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
	for _, state := range allStates {
		handlers["somebody else's, "+string(state)] = httplock.TicketsOver(&fakeQueue{state: state, principal: "ann", result: []byte("x")}, ofAnn)
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

func TestTicket_OfAnotherClientIsNotFound(t *testing.T) {
	q := &fakeQueue{state: delayqueue.StateQueued, principal: "ann"}
	h := httplock.TicketsOver(q, func(r *http.Request, s delayqueue.Status) bool { return s.Principal == r.Header.Get("X-User") })
	require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodDelete, ticketPath, "").Status)
	require.Zero(t, q.cancelled)
	r := testbed.Request(t, http.MethodDelete, ticketPath, "")
	r.Header.Set("X-User", "ann")
	require.Equal(t, http.StatusNoContent, testbed.Do(h, r).Status)
	require.Equal(t, 1, q.cancelled)
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
