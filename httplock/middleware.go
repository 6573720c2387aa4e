package httplock

import (
	"cmp"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/method"
)

// maxNameLen bounds a Call's name.
const maxNameLen = 256

// Middleware guards requests. It is safe for concurrent use and needs no
// closing. The zero Middleware, and a nil one, refuse every request.
type Middleware struct {
	guard         *core.Guard
	log           *slog.Logger // nil: slog's default at the time of use
	skip          func(*http.Request) bool
	safe          safeMode
	body          bodyRules
	waiters       *waiters // nil: no bound
	statusPath    string
	keptHeaders   map[string]bool
	replayHost    string
	retryStatuses []int
	credentials   map[string]bool // headers
	honorPrefer   bool
	idempotency   *idempotencyRules // nil: Idempotency-Key is the handler's
	onConflict    ProblemHandler
	onError       ProblemHandler
	observer      Observer     // nil: nobody is told
	holds         *recentHolds // apart from what does not change, for the sake of the processor's cache

	principal       func(*http.Request) (string, error)
	reauthorize     func(r *http.Request, principal string) error
	anonymous       bool
	warnCredentials sync.Once
	warnSelfCall    sync.Once
	unparked        warned // by why
}

// Exchange is one request on its way through a framework's chain, as an adapter hands it to
// [Middleware.Serve].
type Exchange struct {
	// Writer takes the response, if the guard answers in the chain's place.
	Writer http.ResponseWriter
	// Request is the request as the framework has it.
	Request *http.Request
	// Name is the route, such as "POST /orders/:id/pay". It is for logs and metrics, and stored
	// with parked requests; it may be empty.
	Name string
	// Key returns the key, as a KeyFunc does. Match.Key calls one.
	Key func() (string, error)
	// Next runs the rest of the chain, on this goroutine, with the request given
	// in place of Request.
	Next func(*http.Request)
	// Written reports whether a response was begun. Nil: not known, and taken as
	// begun once Next was called.
	Written func() bool
	// Status returns the status of the response that was begun, or else the one that would be sent
	// if nothing more were written; 0 if that is not known. It is for Observers. Nil: not known.
	Status func() int
	// Tee replaces the writer of the rest of the chain by what wrap returns, which passes
	// everything on to wrap's argument: the writer so far. It is called at most once, before Next.
	// If whole, an adapter whose framework keeps a response back begins it before Next returns, so that
	// the new writer has seen its status. Nil: the adapter cannot do this, and requests that need it,
	// those of WithIdempotency, are refused.
	Tee func(wrap func(http.ResponseWriter) http.ResponseWriter, whole bool)
	// Skip reports whether the request passes without the key, as [WithSkip]'s function does. Nil: it does not say so.
	Skip func() bool
	// Framework is the framework's context, or whatever the adapter's own options look
	// for in a Problem, and by FrameworkFrom. It may be nil.
	Framework any
	// Problem takes what would be written in place of Next's response, unless an option handles it;
	// the adapter answers it after Serve. Nil: a problem document is written.
	Problem func(*Problem)

	host  string      // of the route's pattern
	guard *Middleware // in whose name respond answers
	err   error       // why

	outcome *Outcome // nil: nobody is told
}

// New returns a Middleware over guard. Its error wraps core.ErrInvalidOption.
func New(guard *core.Guard, opts ...Option) (*Middleware, error) {
	if guard == nil {
		return nil, invalid("the guard is nil: make one with Locker.Guard")
	}
	if err := guard.Err(); err != nil {
		return nil, err
	}
	m := &Middleware{
		guard: guard, body: defaultBodyRules(), keptHeaders: maps.Clone(defaultHeaders), credentials: maps.Clone(credentialHeaders),
		holds: &recentHolds{minHold: guard.MinHold()},
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalid("an option is nil")
		}
		if err := opt(m); err != nil {
			return nil, err
		}
	}
	if err := cmp.Or(m.idempotency.check(m), m.body.check(), m.checkCredentials(), m.checkPrincipal()); err != nil {
		return nil, err
	}
	return m, nil
}

// Serve runs x.Next while holding the request's key, or writes a response that says why not. It
// reports whether x.Next was called. It blocks while the guard's policy waits and while x.Next
// runs, and releases the key before it returns. A panic of x.Key or x.Next passes through.
func (m *Middleware) Serve(x Exchange) (ran bool) {
	if m == nil || m.observer == nil {
		return m.serve(x)
	}
	return m.observed(x)
}

func (m *Middleware) serve(x Exchange) (ran bool) {
	if replay := replayFrom(x.Request.Context()); replay != nil {
		defer func() {
			value := recover()
			if replay.left(value); value != nil {
				panic(value)
			}
		}()
	}
	ran, whole := m.pass(x)
	if !whole {
		idempotentRequestFrom(x.Request.Context()).discard()
	}
	return ran
}

// pass is serve: what needs no key passes; what needs one is guarded. It also reports whether the response
// is that of x.Next, now or when the request was made first.
func (m *Middleware) pass(x Exchange) (ran, whole bool) {
	if m == nil || m.guard == nil {
		replayFrom(x.Request.Context()).refused("", errMisconfigured)
		respond(x, problemMisconfigured.document(0))
		return false, false
	}
	p := requestStates.Get().(*requestState)
	p.m, p.x, p.replay = m, x, replayFrom(x.Request.Context())
	p.guarded()
	ran, whole = p.ran, p.ran && !p.lost || p.fromStore
	p.recycle()
	return ran, whole
}

// callName is the name of the request's route, of at most maxNameLen bytes. A method that is none of HTTP's own is OTHER in it: a client may
// send any word, and metrics have a series for each name.
func (x Exchange) callName() string {
	name := x.Name
	if route, ok := strings.CutPrefix(name, x.Request.Method+" "); ok && !slices.Contains(method.All, x.Request.Method) {
		name = "OTHER " + route
	}
	return name[:min(len(name), maxNameLen)]
}

func isSafe(r *http.Request) bool { return method.IsSafe(r.Method) }

func (m *Middleware) logger() *slog.Logger {
	if m.log != nil {
		return m.log
	}
	return slog.Default()
}
