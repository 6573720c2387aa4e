package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
)

func anyone(*http.Request, delayqueue.Status) bool { return true }

func TestTicketTellsItsState(t *testing.T) {
	enqueued := time.UnixMilli(1800000000000)
	for state, open := range map[delayqueue.State]bool{
		delayqueue.StateQueued: true, delayqueue.StateRunning: true, delayqueue.StateDone: false,
		delayqueue.StateDead: false, delayqueue.StateExpired: false,
	} {
		h := httplock.TicketsOver(func(_ context.Context, id string) (delayqueue.Status, error) {
			return delayqueue.Status{
				ID: id, Name: secret, State: state, Attempts: 2, Conflicts: 3, Losses: 1,
				EnqueuedAt: enqueued, ExpiresAt: enqueued.Add(time.Minute), Cause: secret,
			}, nil
		}, anyone)
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			resp := call(t, h, method, "/tickets/"+ticketID, "")
			content := resp.body
			require.Equal(t, http.StatusOK, resp.status)
			require.Equal(t, "application/json", resp.header.Get("Content-Type"))
			require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
			require.Equal(t, open, resp.header.Get("Retry-After") != "")
			if method == http.MethodHead {
				require.Empty(t, content)
				continue
			}
			require.JSONEq(t, fmt.Sprintf(`{"id":%q,"state":%q,"attempts":2,"conflicts":3,
				"enqueued_at":"2027-01-15T08:00:00.000Z","expires_at":"2027-01-15T08:01:00.000Z"}`, ticketID, state), content)
		}
	}
}

func TestTicketsThatAreNotTheClientsAreAll404(t *testing.T) {
	asked := 0
	unknown := httplock.TicketsOver(func(context.Context, string) (delayqueue.Status, error) {
		asked++
		return delayqueue.Status{}, fmt.Errorf("status: %w", delayqueue.ErrNotFound)
	}, anyone)
	notTheirs := httplock.TicketsOver(func(_ context.Context, id string) (delayqueue.Status, error) {
		return delayqueue.Status{ID: id, State: delayqueue.StateQueued}, nil
	}, func(_ *http.Request, s delayqueue.Status) bool { return s.ID != ticketID })

	want := call(t, unknown, http.MethodGet, "/tickets/"+ticketID, "")
	require.Equal(t, 1, asked)
	for name, resp := range map[string]answer{
		"not authorized": call(t, notTheirs, http.MethodGet, "/tickets/"+ticketID, ""),
		"no id":          call(t, unknown, http.MethodGet, "/tickets/", ""),
		"short id":       call(t, unknown, http.MethodGet, "/tickets/abc", ""),
		"long id":        call(t, unknown, http.MethodGet, "/tickets/"+ticketID+"0", ""),
		"upper case":     call(t, unknown, http.MethodGet, "/tickets/0123456789ABCDEF0123456789ABCDEF", ""),
		"glob":           call(t, unknown, http.MethodGet, "/tickets/????????????????????????????????", ""),
		"not hex":        call(t, unknown, http.MethodGet, "/tickets/0123456789abcdef0123456789abcdeg", ""),
		"no queue":       call(t, httplock.TicketHandler(nil, anyone), http.MethodGet, "/tickets/"+ticketID, ""),
		"no authorize":   call(t, httplock.TicketHandler(new(delayqueue.Queue), nil), http.MethodGet, "/tickets/"+ticketID, ""),
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, http.StatusNotFound, resp.status)
			require.Equal(t, want, resp)
		})
	}
	require.Equal(t, 1, asked, "what cannot be an id is not asked for")
	requireProblem(t, call(t, notTheirs, http.MethodGet, "/tickets/"+ticketID, ""), http.StatusNotFound, "no-such-ticket", false)
	require.Empty(t, call(t, unknown, http.MethodHead, "/tickets/"+ticketID, "").body)
}

func TestTicketErrors(t *testing.T) {
	over := func(err error) http.Handler {
		return httplock.TicketsOver(func(context.Context, string) (delayqueue.Status, error) { return delayqueue.Status{}, err }, anyone)
	}
	resp := call(t, over(fmt.Errorf("status: %w", core.ErrUnavailable)), http.MethodGet, "/tickets/"+ticketID, "")
	requireProblem(t, resp, http.StatusServiceUnavailable, "unavailable", true)
	require.Contains(t, resp.body, "The state of the ticket could not be read. Try again later.")
	resp = call(t, over(errors.New(secret)), http.MethodGet, "/tickets/"+ticketID, "")
	requireProblem(t, resp, http.StatusInternalServerError, "internal", false)
	require.Contains(t, resp.body, "The state of the ticket could not be read.")
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
		resp := call(t, over(nil), method, "/tickets/"+ticketID, "")
		require.Equal(t, "GET, HEAD", resp.header.Get("Allow"))
		requireProblem(t, resp, http.StatusMethodNotAllowed, "method-not-allowed", false)
	}
}
