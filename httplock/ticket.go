package httplock

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// TicketHandler tells what became of parked requests. Mount it where
// WithStatusPath points, for all methods: the ticket's id is the last segment of
// the path. Under gin that is
//
//	r.Any("/tickets/:id", gin.WrapH(httplock.TicketHandler(queue, authorize)))
//
// GET and HEAD answer 200 with the ticket's id, state, attempts, conflicts,
// enqueued_at and expires_at; other methods have 405 and Allow. State done means
// that the replay was answered, not that it succeeded: 4xx is a result. authorize
// says whether the client may see the ticket; it may be called from several
// goroutines. A ticket that the client may not see, one that is gone and one that
// never was have the same 404.
//
// Without a queue or without authorize every answer is that 404, and the mistake
// is logged once.
func TicketHandler(q *delayqueue.Queue, authorize func(*http.Request, delayqueue.Status) bool) http.Handler {
	if q == nil || authorize == nil {
		slog.Error("httplock: TicketHandler: the queue or the authorize function is nil: every ticket is refused")
		return &tickets{}
	}
	return &tickets{status: q.Status, authorize: authorize}
}

type tickets struct {
	status    func(ctx context.Context, id string) (delayqueue.Status, error)
	authorize func(*http.Request, delayqueue.Status) bool
}

func (t *tickets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		problemMethod.document(0).write(w, r)
		return
	}
	id := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if t.status == nil || !isTicketID(id) {
		problemNoTicket.document(0).write(w, r)
		return
	}
	status, err := t.status(r.Context(), id)
	switch {
	case errors.Is(err, delayqueue.ErrNotFound):
		problemNoTicket.document(0).write(w, r)
	case r.Context().Err() != nil:
		w.WriteHeader(statusClientClosedRequest)
	case errors.Is(err, core.ErrUnavailable):
		slog.WarnContext(r.Context(), "httplock: the status of a ticket", "error", err)
		unread(problemUnavailable, " Try again later.").document(soon()).write(w, r)
	case err != nil:
		slog.ErrorContext(r.Context(), "httplock: the status of a ticket", "error", err)
		unread(problemInternal, "").document(0).write(w, r)
	case !t.authorize(r, status):
		problemNoTicket.document(0).write(w, r)
	default:
		writeTicket(w, r, status)
	}
}

// unread is about a ticket. The other texts of k are about a request that would
// have run.
func unread(k problemKind, advice string) problemKind {
	k.detail = "The state of the ticket could not be read." + advice
	return k
}

func writeTicket(w http.ResponseWriter, r *http.Request, s delayqueue.Status) {
	retryAfter := time.Duration(0)
	if s.State == delayqueue.StateQueued || s.State == delayqueue.StateRunning {
		retryAfter = ticketRetryAfter
	}
	writeJSON(w, r, http.StatusOK, "application/json", retryAfter, struct {
		ID         string           `json:"id"`
		State      delayqueue.State `json:"state"`
		Attempts   int              `json:"attempts"`
		Conflicts  int              `json:"conflicts"`
		EnqueuedAt string           `json:"enqueued_at"`
		ExpiresAt  string           `json:"expires_at"`
	}{s.ID, s.State, s.Attempts, s.Conflicts, timestamp(s.EnqueuedAt), timestamp(s.ExpiresAt)})
}

// isTicketID reports whether id has the form of a ticket's: 128 bits in lower
// case hex. Nothing else is worth asking Redis for.
func isTicketID(id string) bool {
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(id) == 32
}
