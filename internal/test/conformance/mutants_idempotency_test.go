package conformance_test

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/conformance"
)

// tee changes how the rest of the chain is shown to a guard.
func tee(f func(c *toyContext, wrap func(http.ResponseWriter) http.ResponseWriter)) func(conformance.Lock) toyHandler {
	return serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
		x.Tee = func(wrap func(http.ResponseWriter) http.ResponseWriter, _ bool) { f(c, wrap) }
		m.Serve(x)
	})
}

// pastTee is a writer whose streams pass the tee by.
type pastTee struct {
	*toyWriter
	tee http.ResponseWriter
}

func (w pastTee) WriteHeader(status int)      { w.tee.WriteHeader(status) }
func (w pastTee) Write(p []byte) (int, error) { return w.tee.Write(p) }

// invariable is a writer whose responses depend on nothing.
type invariable struct{ http.ResponseWriter }

func (w invariable) WriteHeader(status int) {
	w.Header().Del("Vary")
	w.ResponseWriter.WriteHeader(status)
}

// idempotencyMutants are mistakes with requests that are made twice, and with what clients prefer.
var idempotencyMutants = map[string]mutant{
	"shows no response": {
		perKey: tee(func(c *toyContext, wrap func(http.ResponseWriter) http.ResponseWriter) { wrap(c.w) }),
		fails: map[string]string{
			"Idempotency-Key: runs once": "Not equal", "Idempotency-Key: failures run again": "Idempotent-Replayed",
			"Idempotency-Key: a stream is not kept": "409", "Idempotency-Key: a hijacked connection is not kept": "hijacked",
			"Idempotency-Key: parked once": "201", "Idempotency-Key: in progress": "Not equal",
		},
	},
	"has no Tee": {
		perKey: serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			x.Tee = nil
			m.Serve(x)
		}),
		fails: map[string]string{
			"Idempotency-Key: runs once": "its Exchange has no Tee", "Idempotency-Key: parked once": "its Exchange has no Tee",
			"a long response ends after the release": "not within",
		},
	},
	"does not restore the writer": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			tee, rest := x.Tee, x.Next
			left := c.w
			x.Tee = func(wrap func(http.ResponseWriter) http.ResponseWriter, whole bool) {
				tee(wrap, whole)
				left = c.w
			}
			x.Next = func(r *http.Request) {
				defer func() { c.w = left }()
				rest(r)
			}
			m.Serve(x)
		}),
		fails: map[string]string{"Idempotency-Key: writer restored": "is not there after"},
	},
	"hands on errors that were answered": {
		perKey: serveErr(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange, _ *error) (handlers error) {
			handler := c.rest[len(c.rest)-1]
			c.rest[len(c.rest)-1] = func(c *toyContext) error {
				handlers = handler(c)
				return handlers
			}
			m.Serve(x)
			return handlers
		}),
		fails: map[string]string{"Idempotency-Key: handler's error": "is not returned to be answered again"},
	},
	"answers errors too late": {
		perKey: tee(func(c *toyContext, wrap func(http.ResponseWriter) http.ResponseWriter) { c.w = wrap(c.w) }),
		fails:  map[string]string{"Idempotency-Key: handler's error": "Not equal"},
	},
	"streams past the tee": {
		perKey: tee(func(c *toyContext, wrap func(http.ResponseWriter) http.ResponseWriter) {
			c.w = pastTee{c.began, wrap(c.w)}
		}),
		fails: map[string]string{
			"Idempotency-Key: a stream is not kept": "409", "Idempotency-Key: a hijacked connection is not kept": "hijacked",
		},
	},
	"names each request": {
		perKey: func(l conformance.Lock) toyHandler {
			var n atomic.Int64
			return serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) {
				x.Name += strconv.FormatInt(n.Add(1), 10)
				m.Serve(x)
			})(l)
		},
		fails: map[string]string{
			"Idempotency-Key: runs once":   "not the stored response",
			"Idempotency-Key: in progress": "422", "Idempotency-Key: parked once": "the ticket that there is",
		},
	},
	"says not what responses depend on": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			x.Writer = invariable{c.w}
			m.Serve(x)
		}),
		fails: map[string]string{"Prefer: wait": "depends on Prefer", "Prefer: respond-async": "depends on Prefer"},
	},
	"takes all for one principal": {
		perKey: options(func(opts []httplock.Option) []httplock.Option {
			return append(opts, httplock.WithPrincipal(func(*http.Request) (string, error) { return "all", nil }))
		}),
		fails: map[string]string{"waiters of a principal are bounded": "the others wait"},
	},
	"always honors Prefer": {
		perKey: options(func(opts []httplock.Option) []httplock.Option { return append(opts, httplock.WithPrefer()) }),
		fails:  map[string]string{"Prefer is the handler's": "202"},
	},
}
