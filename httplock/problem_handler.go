package httplock

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Problem is what a guard answers in a handler's place, as a problem document (RFC 9457): a
// refusal, or that the lease was lost before the handler had answered. WithConflictHandler and
// WithErrorHandler pass it to a function of yours.
//
// It is an error. Its text is the title, which may be shown to clients; Err may not.
type Problem struct { //nolint:errname // RFC 9457 calls it so
	// Type is a URI that says which problem it is, and where it is described.
	Type string
	// Status is the status of the response.
	Status int
	// Title and Detail are for people, and do not repeat the key.
	Title, Detail string
	// RetryAfter is how long to wait before trying again. Zero: trying again is not advised.
	RetryAfter time.Duration
	// Err is what happened, for errors.Is: core.ErrConflict, core.ErrUnavailable,
	// core.ErrLeaseLost and others. It may name the key. Nil: a guard is missing where
	// there should be one.
	Err error
	// Framework is the Exchange's.
	Framework any
}

// ProblemHandler writes a response in place of a problem document. When it is called,
// Retry-After and Cache-Control are set, and headers that a handler set for its own
// response are removed. If it writes nothing, the document is written. It must be safe
// for concurrent use.
type ProblemHandler func(http.ResponseWriter, *http.Request, *Problem)

// WithConflictHandler sets f to answer the requests whose key is held, and that neither wait nor are parked.
func WithConflictHandler(f ProblemHandler) Option {
	return func(m *Middleware) error {
		if f == nil {
			return invalid("WithConflictHandler(nil)")
		}
		m.onConflict = f
		return nil
	}
}

// WithErrorHandler sets f to answer all other problems, and conflicts too if there is no
// WithConflictHandler. A 202 is not a problem.
func WithErrorHandler(f ProblemHandler) Option {
	return func(m *Middleware) error {
		if f == nil {
			return invalid("WithErrorHandler(nil)")
		}
		m.onError = f
		return nil
	}
}

// Write writes the problem document, as it would be written without a ProblemHandler.
func (p *Problem) Write(w http.ResponseWriter, r *http.Request) { p.document().write(w, r) }

// Error returns the status and the title.
func (p *Problem) Error() string { return fmt.Sprintf("httplock: status %d: %s", p.Status, p.Title) }

// Unwrap returns Err.
func (p *Problem) Unwrap() error { return p.Err }

// StatusCode returns Status.
func (p *Problem) StatusCode() int { return p.Status }

// MarshalJSON returns the problem document.
func (p *Problem) MarshalJSON() ([]byte, error) { return json.Marshal(p.document()) }

func (p *Problem) document() problem {
	return problem{Type: p.Type, Title: p.Title, Status: p.Status, Detail: p.Detail, RetryAfter: p.RetryAfter.Milliseconds()}
}

// because says for respond on whose behalf, and why, it answers.
func (x Exchange) because(m *Middleware, err error) Exchange {
	x.guard, x.err = m, err
	return x
}

// handled hands a problem to whom it is for, and reports whether that one has answered.
func handled(x Exchange, doc problem) bool {
	p := &Problem{
		Type: doc.Type, Status: doc.Status, Title: doc.Title, Detail: doc.Detail,
		RetryAfter: time.Duration(doc.RetryAfter) * time.Millisecond, Err: x.err, Framework: x.Framework,
	}
	if f := x.guard.handlerFor(doc.outcome); f != nil {
		prepareHeader(x.Writer.Header(), p.RetryAfter)
		f(x.Writer, x.Request, p)
		return x.Written == nil || x.Written()
	}
	if x.Problem != nil {
		prepareHeader(x.Writer.Header(), p.RetryAfter)
		x.Problem(p)
		return true
	}
	return false
}

func (m *Middleware) handlerFor(outcome OutcomeKind) ProblemHandler {
	switch {
	case m == nil:
		return nil
	case outcome == OutcomeConflict && m.onConflict != nil:
		return m.onConflict
	}
	return m.onError
}

// prepareHeader takes back what a handler may have said about a response of its own,
// and says when to try again.
func prepareHeader(h http.Header, retryAfter time.Duration) {
	for _, name := range []string{
		"Content-Length", "Content-Encoding", "Content-Range", "Content-Disposition", "Content-Language",
		"Etag", "Last-Modified", "Expires", "Accept-Ranges",
	} {
		h.Del(name)
	}
	h.Set("Cache-Control", "no-store")
	h.Del("Retry-After")
	if retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(retryAfter), 10))
	}
}
