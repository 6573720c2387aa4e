package conformance_test

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/conformance"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// toy is a router whose handlers share a context, as gin's, and return errors, as echo's.
type toy struct {
	mux http.ServeMux
	use []toyHandler
}

type toyHandler func(*toyContext) error

type toyContext struct {
	w     http.ResponseWriter
	r     *http.Request
	began *toyWriter
	route string // empty: none was matched
	rest  []toyHandler
}

func (c *toyContext) next() error {
	h := c.rest[0]
	c.rest = c.rest[1:]
	return h(c)
}

func (t *toy) handle(route string, chain ...toyHandler) {
	t.mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) { t.run(w, r, route, chain) })
}

func (t *toy) run(w http.ResponseWriter, r *http.Request, route string, chain []toyHandler) {
	began := &toyWriter{ResponseWriter: w}
	c := &toyContext{w: began, r: r, began: began, route: route, rest: append(slices.Clone(t.use), chain...)}
	c.answer(c.next())
}

// answer answers an error, unless a response was begun.
func (c *toyContext) answer(err error) {
	status, is := errors.AsType[toyError](err)
	if !is {
		status = http.StatusInternalServerError
	}
	if err != nil && c.began.status == 0 {
		http.Error(c.w, status.Error(), int(status))
	}
}

// toyError is an error that is answered with a status.
type toyError int

func (e toyError) Error() string { return http.StatusText(int(e)) }

func (t *toy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h, pattern := t.mux.Handler(r); pattern == "" {
		t.run(w, r, "", []toyHandler{func(c *toyContext) error { h.ServeHTTP(c.w, c.r); return nil }})
		return
	}
	t.mux.ServeHTTP(w, r)
}

// toyWriter knows the status of the response that was begun.
type toyWriter struct {
	http.ResponseWriter
	status int
}

func (w *toyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w *toyWriter) WriteHeader(status int)      { w.begin(status).WriteHeader(status) }
func (w *toyWriter) Write(p []byte) (int, error) { return w.begin(http.StatusOK).Write(p) }
func (w *toyWriter) Flush()                      { _ = http.NewResponseController(w.begin(http.StatusOK)).Flush() }

func (w *toyWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.begin(http.StatusSwitchingProtocols)).Hijack()
}

func (w *toyWriter) begin(status int) http.ResponseWriter {
	w.status = cmp.Or(w.status, status)
	return w.ResponseWriter
}

// From here it is what an adapter costs: the adapter, and its registration.

// perKey runs one request at a time per key.
func perKey(l conformance.Lock) toyHandler {
	m := middleware(l)
	return func(c *toyContext) (err error) {
		if c.route == "" {
			return c.next()
		}
		m.Serve(exchange(c, l.Key, &err))
		return err
	}
}

func middleware(l conformance.Lock) *httplock.Middleware {
	m, err := httplock.New(l.Guard, l.Options...)
	if err == nil && l.Key == nil {
		err = fmt.Errorf("toy: %w: the key function is nil", core.ErrInvalidOption)
	}
	if err != nil {
		panic(err)
	}
	return m
}

func exchange(c *toyContext, key httplock.KeyFunc, err *error) httplock.Exchange {
	outer, teed := *c, false
	return httplock.Exchange{
		Writer: c.w, Request: c.r, Name: c.route,
		Key: func() (string, error) { return key(c.r) },
		Next: func(r *http.Request) {
			defer func() { c.w, c.r = outer.w, outer.r }()
			c.r = r
			if *err = c.next(); teed && c.began.status == 0 {
				c.answer(*err)
				*err = nil
			}
		},
		Tee: func(wrap func(http.ResponseWriter) http.ResponseWriter, whole bool) {
			c.w, teed = wrap(c.w), whole
		},
		Written: func() bool { return c.began.status != 0 },
		Status: func() int {
			if *err != nil {
				return c.began.status
			}
			return cmp.Or(c.began.status, http.StatusOK)
		},
	}
}

func TestConformance(t *testing.T) { conformance.Run(t, toyAdapter(perKey)) }

func toyAdapter(perKey func(conformance.Lock) toyHandler) conformance.Adapter {
	return conformance.Adapter{Name: "toy", Error: func(status int) error { return toyError(status) }, New: func(app conformance.App) http.Handler {
		router := &toy{use: toySteps(app.Use, perKey)}
		for _, r := range app.Routes {
			router.handle(r.Method+" "+r.Pattern, append(toySteps(r.Chain, perKey), func(c *toyContext) error { return r.Handler(c.w, c.r) })...)
		}
		return router
	}}
}

func toySteps(steps []conformance.Step, perKey func(conformance.Lock) toyHandler) []toyHandler {
	return conformance.Chain(steps, perKey, toyMiddleware(conformance.Recover), toyMiddleware)
}

func toyMiddleware(mw conformance.Middleware) toyHandler {
	return func(c *toyContext) error {
		return mw(conformance.Context{
			Writer: func() http.ResponseWriter { return c.w }, Request: func() *http.Request { return c.r }, Next: c.next,
		})
	}
}
