package httplock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// TicketHandler returns a handler that serves the state and the result of parked requests, and cancels them. Mount it
// where WithStatusPath points, for all methods and all paths below:
//
//	mux.Handle("/tickets/", httplock.TicketHandler(queue, authorize))
//	r.Any("/tickets/*path", gin.WrapH(httplock.TicketHandler(queue, authorize))) // gin
//
// The path ends with the ticket's id, or with the id and "/result"; what is in front of it does not matter.
//
//	GET id          200 with id, state, attempts, conflicts, enqueued_at and expires_at;
//	                303 with the same, and the result's Location, when the state is done;
//	                superseded_by, the id of the ticket that replaced it, when the state is
//	                superseded and the request has a principal;
//	                with "Prefer: wait=N" when it has ended, or after N seconds, 30 at most, or
//	                when the http.Server shuts down
//	GET id/result   the status, headers and body that the replay was answered with
//	DELETE id       204, and the request runs no more; 409 while it runs or when it has ended
//
// HEAD is GET without a body. Other methods have 405 and Allow. State done means that the replay was answered, not that
// it succeeded: 4xx and 5xx are results. A request that was tried again until it was too old is dead: its last
// response, shortened, is its result, and last_status in its state. Replay's options decide which headers and how much
// of the body a result has; a result that is not whole has the header "Perkey-Truncated: true". Location is relative to
// the ticket's own address, so it holds behind any prefix.
//
// authorize reports whether the client may see and cancel the ticket. It is called before anything else is sent or
// done, and can compare the client with Status.Principal, which WithPrincipal stored and which is empty for anonymous
// requests. Tickets are those of parked requests, and of jobs that the queue gave an id: 32 hexadecimal digits. A job
// with a Job.ID of its own has no ticket here, since its id could be guessed. A ticket's id cannot be guessed, but by
// who knows an Idempotency-Key and its request, and can be passed on. authorize must be safe for concurrent use. A
// ticket that the client may not see, one that is gone, one that never was, and a result that is not there have the
// same 404.
//
// Without a queue or without authorize every answer is that 404, and the mistake is logged once.
func TicketHandler(q *delayqueue.Queue, authorize func(*http.Request, delayqueue.Status) bool) http.Handler {
	if q == nil || authorize == nil {
		slog.Error("httplock: TicketHandler: the queue or the authorize function is nil: every ticket is refused")
		return &tickets{}
	}
	return &tickets{queue: q, authorize: authorize}
}

// ticketQueue is what TicketHandler needs of a queue.
type ticketQueue interface {
	Status(ctx context.Context, id string) (delayqueue.Status, error)
	Wait(ctx context.Context, id string) (delayqueue.Status, error)
	Result(ctx context.Context, id string) ([]byte, error)
	Cancel(ctx context.Context, id string) error
}

type tickets struct {
	queue     ticketQueue // nil: there are no tickets
	authorize func(*http.Request, delayqueue.Status) bool

	mu      sync.Mutex
	servers map[*http.Server]context.Context // each ends when its server shuts down
}

// serving returns a ctx that ends when the server of a request shuts down. A server that shuts down waits for its
// handlers, and does not end the ctx of their requests.
func (t *tickets) serving(r *http.Request) context.Context {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return context.Background()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx := t.servers[server]
	if ctx == nil {
		var end context.CancelFunc
		ctx, end = context.WithCancel(context.Background())
		server.RegisterOnShutdown(end)
		if t.servers == nil {
			t.servers = map[*http.Server]context.Context{}
		}
		t.servers[server] = ctx
	}
	return ctx
}

func (t *tickets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serving := t.serving(r) // before the first that waits: a server that shuts down already does not tell
	id, result := ticketOf(r.URL.Path)
	allow := []string{http.MethodGet, http.MethodHead, http.MethodDelete}
	if result {
		allow = allow[:2]
	}
	if !slices.Contains(allow, r.Method) {
		w.Header().Set("Allow", strings.Join(allow, ", "))
		problemMethod.document(0).write(w, r)
		return
	}
	var err error
	switch {
	case t.queue == nil || !isTicketID(id):
		err = delayqueue.ErrNotFound
	case r.Method == http.MethodDelete:
		err = t.cancel(w, r, id)
	case result:
		err = t.result(w, r, id)
	default:
		err = t.status(serving, w, r, id)
	}
	switch {
	case err == nil:
	case errors.Is(err, delayqueue.ErrNotFound):
		problemNoTicket.document(0).write(w, r)
	case errors.Is(err, delayqueue.ErrRunning):
		problemTicketRunning.document(ticketRetryAfter).write(w, r)
	case errors.Is(err, delayqueue.ErrEnded):
		problemTicketEnded.document(0).write(w, r)
	case r.Context().Err() != nil:
		w.WriteHeader(statusClientClosedRequest)
	case errors.Is(err, core.ErrUnavailable):
		slog.WarnContext(r.Context(), "httplock: a ticket could not be served", "error", err)
		ticketProblem(problemUnavailable, r.Method, " Try again later.").document(soon()).write(w, r)
	default:
		slog.ErrorContext(r.Context(), "httplock: a ticket could not be served", "error", err)
		ticketProblem(problemInternal, r.Method, "").document(0).write(w, r)
	}
}

// seen returns the status of a ticket that the client may see.
func (t *tickets) seen(r *http.Request, id string) (delayqueue.Status, error) {
	s, err := t.queue.Status(r.Context(), id)
	if err == nil && !t.authorize(r, s) {
		err = delayqueue.ErrNotFound
	}
	return s, err
}

func (t *tickets) status(serving context.Context, w http.ResponseWriter, r *http.Request, id string) error {
	s, err := t.seen(r, id)
	if prefers := parsePrefer(r.Header["Prefer"]); err == nil && prefers.Wait > 0 && !s.State.Ended() {
		wait := min(prefers.Wait, maxTicketWait)
		if s, err = t.wait(r.Context(), serving, s, wait); err == nil {
			announce(w, core.Preference{Bounded: true, Wait: wait})
		}
	}
	if err != nil {
		return err
	}
	last := 0
	if s.State == delayqueue.StateDead {
		result, err := t.stored(r, id)
		switch {
		case err == nil:
			last = result.Status
		case !errors.Is(err, delayqueue.ErrNotFound):
			return err
		}
	}
	w.Header().Add("Vary", "Prefer")
	writeTicket(w, r, s, last)
	return nil
}

// stored returns the result of a ticket.
func (t *tickets) stored(r *http.Request, id string) (*result, error) {
	stored, err := t.queue.Result(r.Context(), id)
	if err != nil {
		return nil, err
	}
	result, err := decodeResult(stored)
	switch {
	case errors.Is(err, errUnknownForm): // another replica can read it
		return nil, fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	case err != nil: // a job's, which no request was parked for, or junk
		slog.WarnContext(r.Context(), "httplock: the result of a ticket is not a response", "error", err)
		return nil, delayqueue.ErrNotFound
	}
	return result, nil
}

// maxTicketWait bounds how long a client waits for a ticket's end.
const maxTicketWait = 30 * time.Second

// wait returns the status of a ticket when it has ended, or after d, or with serving: then it is the
// last one known if Redis does not answer.
func (t *tickets) wait(ctx, serving context.Context, s delayqueue.Status, d time.Duration) (delayqueue.Status, error) {
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	ended, err := t.queue.Wait(bounded, s.ID)
	if err == nil || ctx.Err() != nil || bounded.Err() == nil && !errors.Is(err, core.ErrUnavailable) {
		return ended, err
	}
	now, err := t.queue.Status(ctx, s.ID)
	if errors.Is(err, core.ErrUnavailable) {
		return s, nil
	}
	return now, err
}

func (t *tickets) result(w http.ResponseWriter, r *http.Request, id string) error {
	if _, err := t.seen(r, id); err != nil {
		return err
	}
	result, err := t.stored(r, id)
	if err == nil {
		result.write(w, r)
	}
	return err
}

func (t *tickets) cancel(w http.ResponseWriter, r *http.Request, id string) error {
	if _, err := t.seen(r, id); err != nil {
		return err
	}
	if err := t.queue.Cancel(r.Context(), id); err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// ticketOf returns the id at the end of a path, and whether the path is that of its result.
func ticketOf(path string) (id string, result bool) {
	path, result = strings.CutSuffix(path, "/"+resultSegment)
	return path[strings.LastIndexByte(path, '/')+1:], result
}

const resultSegment = "result"

// ticketProblem is k with a detail about a ticket, and not about a request that would have run.
func ticketProblem(k problemKind, method, advice string) problemKind {
	k.detail = "The state of the ticket could not be read." + advice
	if method == http.MethodDelete {
		k.detail = "It could not be confirmed that the request was cancelled." + advice
	}
	return k
}

func writeTicket(w http.ResponseWriter, r *http.Request, s delayqueue.Status, last int) {
	status, retryAfter := http.StatusOK, time.Duration(0)
	switch s.State {
	case delayqueue.StateQueued, delayqueue.StateRunning:
		retryAfter = ticketRetryAfter
	case delayqueue.StateDone:
		status = http.StatusSeeOther
		w.Header().Set("Location", s.ID+"/"+resultSegment)
	default:
	}
	if s.Principal == "" { // whoever replaced it may be anybody
		s.SupersededBy = ""
	}
	writeJSON(w, r, status, "application/json", retryAfter, struct {
		ID           string           `json:"id"`
		State        delayqueue.State `json:"state"`
		Attempts     int              `json:"attempts"`
		Conflicts    int              `json:"conflicts"`
		EnqueuedAt   string           `json:"enqueued_at"`
		ExpiresAt    string           `json:"expires_at"`
		LastStatus   int              `json:"last_status,omitempty"`
		SupersededBy string           `json:"superseded_by,omitempty"`
	}{s.ID, s.State, s.Attempts, s.Conflicts, timestamp(s.EnqueuedAt), timestamp(s.ExpiresAt), last, s.SupersededBy})
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
