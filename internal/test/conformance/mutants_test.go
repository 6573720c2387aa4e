package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/conformance"
)

// mutants are mistakes that adapters could make.
var mutants = map[string]mutant{
	"does not lock": {
		perKey: func(conformance.Lock) toyHandler { return (*toyContext).next },
		fails: map[string]string{
			"runs under its lease": "no lease in the request's ctx", "one at a time": "two handlers inside",
			"refuses with 409": "the handler ran", "503 without Redis": "the handler ran",
			"503 for all requests at once when Redis is silent": "the handler ran", "key errors": "the handler ran",
			"mistakes panic": "registration panics", "WithLockedSafeMethods": "the handler ran", "WithSkip": "the handler ran",
			"replay without a guard runs once": "the handler ran", "replay of a route that is lacking": "202",
		},
	},
	"does not stop the chain": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			if !m.Serve(x) {
				_ = c.next()
			}
		}),
		fails: map[string]string{"refuses with 409": "the handler ran", "forbidden replay never runs": "the handler ran"},
	},
	"releases the key early": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			rest := x.Next
			var locked *http.Request
			x.Next = func(r *http.Request) { locked = r }
			if m.Serve(x) {
				rest(locked.WithContext(context.WithoutCancel(locked.Context())))
			}
		}),
		fails: map[string]string{
			"runs under its lease": "the key is not held", "one at a time": "two handlers inside", "waits": "two handlers inside",
			"Hijack": "the key is not held", "Flush": "the key is not held",
		},
	},
	"releases the key when its ctx ends": {
		perKey: next(func(_ *toyContext, r *http.Request, next func(*http.Request)) {
			lease, _ := core.LeaseFrom(r.Context())
			ctx := endsLate{r.Context(), make(chan struct{})}
			defer context.AfterFunc(r.Context(), func() {
				_ = lease.Release(context.Background())
				close(ctx.over)
			})()
			next(r.WithContext(ctx))
		}),
		fails: map[string]string{"Timeout in front": "the key is not held", "client gone mid-handler": "the key is not held"},
	},
	"does not give the key back": {
		perKey: next(func(_ *toyContext, r *http.Request, next func(*http.Request)) {
			defer func() {
				if lease, held := core.LeaseFrom(r.Context()); held {
					_, _ = lease.Detach(context.Background())
				}
			}()
			next(r)
		}),
		fails: map[string]string{
			"runs under its lease": "the key is not free", "panic, recovery inside": "the key is not free",
			"panic, no recovery": "the key is not free", "parks and replays": "",
		},
	},
	"hands on the request that came": {
		perKey: next(func(c *toyContext, _ *http.Request, next func(*http.Request)) { next(c.r) }),
		fails: map[string]string{
			"runs under its lease": "no lease in the request's ctx", "body is whole after waiting": "", "a handler that calls itself": "508",
		},
	},
	"forgets the body": {
		perKey: next(func(c *toyContext, r *http.Request, next func(*http.Request)) { next(c.r.WithContext(r.Context())) }),
		fails: map[string]string{
			"body is whole after waiting": "Not equal", "body replaced by the key function": "Not equal",
			"functions read forms": "Not equal", "WithSkip reads forms": "Not equal",
		},
	},
	"forgets the form": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			c.r.Form, c.r.PostForm, c.r.MultipartForm = nil, nil, nil
			m.Serve(x)
		}),
		fails: map[string]string{
			"a form read in front is parked whole or not": "a form that can be made again",
			"Idempotency-Key: a form read in front":       "500", "Idempotency-Key: a form read in front, parked": "500",
		},
	},
	"says that nothing was sent": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			c.r.ContentLength, c.r.TransferEncoding = 0, nil
			m.Serve(x)
		}),
		fails: map[string]string{
			"a body drained in front is not parked": "202", "Idempotency-Key: a body drained in front": "the handler ran",
			"a body begun in front is not parked": "202", "Idempotency-Key: a body begun in front": "the handler ran",
		},
	},
	"hides the server's body": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			c.r.Body = struct {
				io.ReadCloser
				memory []byte
			}{ReadCloser: c.r.Body}
			m.Serve(x)
		}),
		fails: map[string]string{"a body capped in front is parked whole": "202"},
	},
	"shows the key function a copy": {
		perKey: func(l conformance.Lock) toyHandler {
			key := l.Key
			l.Key = func(r *http.Request) (string, error) { return key(r.Clone(r.Context())) }
			return perKey(l)
		},
		fails: map[string]string{"body replaced by the key function": "hello!"},
	},
	"loses the body": {
		perKey: next(func(_ *toyContext, r *http.Request, next func(*http.Request)) {
			r.Body = http.NoBody
			next(r)
		}),
		fails: map[string]string{"forms make keys": "the handler takes the same value"},
	},
	"decodes path parameters twice": {
		perKey: param(func(id string, _ *http.Request) string {
			decoded, _ := url.PathUnescape(id)
			return decoded
		}),
		fails: map[string]string{"path parameters are decoded once": "Not equal"},
	},
	"leaves path parameters encoded": {
		perKey: param(func(_ string, r *http.Request) string { return path.Base(r.URL.EscapedPath()) }),
		fails:  map[string]string{"path parameters are decoded once": "Not equal", "aliases have one key": "400"},
	},
	"takes NoKey for a failure": {
		perKey: func(l conformance.Lock) toyHandler {
			key := l.Key
			l.Key = func(r *http.Request) (string, error) {
				k, err := key(r)
				if errors.Is(err, httplock.NoKey) {
					err = errors.New("no key")
				}
				return k, err
			}
			return perKey(l)
		},
		fails: map[string]string{"NoKey": "500"},
	},
	"hides the route from the key function": {
		perKey: func(l conformance.Lock) toyHandler {
			key := l.Key
			l.Key = func(r *http.Request) (string, error) {
				return httplock.Match{}.Key(key, r)
			}
			return perKey(l)
		},
		fails: map[string]string{"key functions see the route": "500"},
	},
	"cuts bodies": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			c.r.Body, c.r.ContentLength = io.NopCloser(io.LimitReader(c.r.Body, 1000)), -1
			m.Serve(x)
		}),
		fails: map[string]string{"body over the cap is not parked": "202"},
	},
	"does not restore the request": {
		perKey: next(func(c *toyContext, r *http.Request, _ func(*http.Request)) {
			c.r = r
			_ = c.next()
		}),
		fails: map[string]string{"request restored": "is not there after"},
	},
	"does not restore the request after a panic": {
		perKey: next(func(c *toyContext, r *http.Request, _ func(*http.Request)) {
			outer := c.r
			c.r = r
			_ = c.next()
			c.r = outer
		}),
		fails: map[string]string{"request restored": "is not there after", "panic, recovery outside": "is not there after"},
	},
	"swallows panics": {
		perKey: next(func(_ *toyContext, r *http.Request, next func(*http.Request)) {
			defer func() { _ = recover() }()
			next(r)
		}),
		fails: map[string]string{
			"panic, recovery outside": "500", "panic, no recovery": "EOF", "failed replays are tried again": "the ticket becomes dead",
			"a replay that panics has failed, recovery outside": "the ticket becomes dead",
		},
	},
	"panics with something else": {
		perKey: next(func(_ *toyContext, r *http.Request, next func(*http.Request)) {
			defer func() {
				if v := recover(); v != nil {
					panic(fmt.Sprint("toy: ", v))
				}
			}()
			next(r)
		}),
		fails: map[string]string{
			"panic, recovery outside": "the panic passes through as it was", "panic, no recovery": "the server knows this panic",
		},
	},
	"swallows panics of the key function": {
		perKey: func(l conformance.Lock) toyHandler {
			key := l.Key
			l.Key = func(r *http.Request) (k string, err error) {
				defer func() {
					if v := recover(); v != nil {
						err = errors.New("toy: panic")
					}
				}()
				return key(r)
			}
			return perKey(l)
		},
		fails: map[string]string{"panic of the key function": "mine"},
	},
	"adds a header to refusals": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			rest := x.Next
			c.w.Header().Set("X-Toy", "1")
			x.Next = func(r *http.Request) {
				c.w.Header().Del("X-Toy")
				rest(r)
			}
			m.Serve(x)
		}),
		fails: map[string]string{"refusals are the same bytes": "X-Toy"},
	},
	"names the path": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			x.Name = c.r.Method + " " + c.r.URL.Path
			m.Serve(x)
		}),
		fails: map[string]string{"names the route": "of the route, not of the request"},
	},
	"does not know the route": {
		perKey: serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) { m.Serve(x) }),
		hoist:  true,
		fails:  map[string]string{"unmatched routes, guarded routes": "404", "unmatched routes, guarded engine": "404"},
	},
	"has a time-out of its own": {
		perKey: withCtx(func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Millisecond)
		}),
		fails: map[string]string{"waits": ""},
	},
	"does not notice that the client left": {
		perKey: withCtx(func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithoutCancel(ctx), func() {}
		}),
		fails: map[string]string{"client gone while waiting": "the waiter leaves", "client gone mid-handler": "the handler returns"},
	},
	"loses what the ctx carries": {
		perKey: withCtx(func(ctx context.Context) (context.Context, context.CancelFunc) { return noValues{ctx}, func() {} }),
		fails: map[string]string{
			"same key passes without Redis": "503", "Idempotency-Key: an inner conflict is not kept": "Idempotent-Replayed",
		},
	},
	"takes any lease for its own": {
		perKey: func(l conformance.Lock) toyHandler {
			lock := perKey(l)
			return func(c *toyContext) error {
				if _, held := core.LeaseFrom(c.r.Context()); held {
					return c.next()
				}
				return lock(c)
			}
		},
		fails: map[string]string{"inner conflict is the inner guard's": "409"},
	},
	"runs replays twice": {
		perKey: next(func(c *toyContext, r *http.Request, next func(*http.Request)) {
			if _, replayed := httplock.Replayed(r.Context()); replayed {
				rest := c.rest
				next(r)
				c.rest = rest
			}
			next(r)
		}),
		fails: map[string]string{"parks and replays": "", "parked requests run once and alone": ""},
	},
	"takes a response for begun": {
		perKey: serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			x.Written = nil
			m.Serve(x)
		}),
		fails: map[string]string{"lost lease": "Exchange.Written", "refusals are the same bytes": "Exchange.Written"},
	},
	"does not know that a response was begun": {
		perKey: serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			x.Written = func() bool { return false }
			m.Serve(x)
		}),
		fails: map[string]string{"lost lease after the response was begun": "the response is the handler's"},
	},
	"serves what was refused again": {
		perKey: serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			if !m.Serve(x) {
				m.Serve(x)
			}
		}),
		fails: map[string]string{"one outcome for each request": "an outcome more"},
	},
	"knows no status": {
		perKey: serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			x.Status = nil
			m.Serve(x)
		}),
		fails: map[string]string{"one outcome for each request": "by Exchange.Status"},
	},
	"drops errors": {
		perKey: serveErr(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange, _ *error) error {
			m.Serve(x)
			return nil
		}),
		fails: map[string]string{"handler's error is the framework's": "500"},
	},
	"answers errors itself": {
		perKey: serveErr(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange, err *error) error {
			m.Serve(x)
			if errors.Is(*err, core.ErrConflict) {
				http.Error(c.w, "conflict", http.StatusConflict)
			}
			return *err
		}),
		fails: map[string]string{"handler's error is the framework's": "409"},
	},
	"wraps the writer": {
		perKey: next(func(c *toyContext, r *http.Request, next func(*http.Request)) {
			outer := c.w
			defer func() { c.w = outer }()
			c.w = struct{ http.ResponseWriter }{outer}
			next(r)
		}),
		fails: map[string]string{
			"Flush": "not supported", "Hijack": "not supported", "ResponseController": "not supported",
			"SSE for longer than the lease": "not supported",
		},
	},
	"serves a copy of the request": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			x.Request = c.r.Clone(c.r.Context())
			m.Serve(x)
		}),
		fails: map[string]string{"uploaded files are removed": "the server removes the file"},
	},
	"locks safe methods": {
		perKey: options(func(opts []httplock.Option) []httplock.Option { return append(opts, httplock.WithLockedSafeMethods()) }),
		fails:  map[string]string{"safe methods pass": "200"},
	},
	"gives the key before the body": {
		perKey: options(func(opts []httplock.Option) []httplock.Option { return append(opts, httplock.WithStreamBody()) }),
		fails:  map[string]string{"a slow body keeps no key": "before its body", "a body that breaks off": ""},
	},
	"reads the body in front": {
		perKey: serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			content, _ := io.ReadAll(c.r.Body)
			c.r.Body = io.NopCloser(bytes.NewReader(content))
			m.Serve(x)
		}),
		fails: map[string]string{"Expect: 100-continue": "the body was asked for"},
	},
	"hides the connection": {
		perKey: serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) {
			x.Writer = struct{ http.ResponseWriter }{x.Writer}
			m.Serve(x)
		}),
		fails: map[string]string{"a body that is late": "the slow request is refused", "the rest of a body that is late": "the handler gives up"},
	},
	"leaves a read deadline": {
		perKey: next(func(c *toyContext, r *http.Request, next func(*http.Request)) {
			_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			next(r)
		}),
		fails: map[string]string{"a body in time": "the limit is the body's, not the handler's", "WithStreamBody": "Received unexpected error"},
	},
	"drops the options": {
		perKey: options(func([]httplock.Option) []httplock.Option { return nil }),
		fails: map[string]string{
			"WithLockedSafeMethods": "the handler ran", "WithSharedSafeMethods": "the handler ran", "WithSkip": "409", "mistakes panic": "registration panics",
			"body over the cap is not parked":        "413",
			"bodies of waiting requests are bounded": "refused while the key is held", "waiters of a principal are bounded": "refused",
			"one outcome for each request": "an outcome", "an observer that panics": "an outcome",
		},
	},
}

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
