package ginlock

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/leasekey"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// PerKey returns middleware that runs one request at a time per key. It panics on a mistake in its
// arguments, with an error that wraps core.ErrInvalidOption; New returns the error.
//
// gin copies the handlers of a route when the route is registered: r.Use(PerKey(…)) goes in front
// of the routes that it is for. [Routes] finds those without a guard.
//
// Handlers hand c.Request.Context() to what they call, and not c, which does not end with the lease: see the
// package's documentation.
//
// The key is released when the handlers return. A time-out middleware behind PerKey that runs them
// on another goroutine returns before they do, and they run on without their key: put
// httplock.Timeout around the engine instead. locktest.RequireGuardWaits finds it in a
// test. A handler that asks its own service for the same key over HTTP waits for itself: see httplock.Transport.
func PerKey(guard *core.Guard, key KeyFunc, opts ...httplock.Option) gin.HandlerFunc {
	h, err := New(guard, key, opts...)
	if err != nil {
		panic(err)
	}
	return h
}

// New is PerKey with an error instead of a panic. The error wraps core.ErrInvalidOption.
func New(guard *core.Guard, key KeyFunc, opts ...httplock.Option) (gin.HandlerFunc, error) {
	m, err := httplock.New(guard, opts...)
	if err != nil {
		return nil, err
	}
	if key == nil {
		return nil, fmt.Errorf(`ginlock: %w: PerKey: the key function is nil: give it one, such as ginlock.Param("order:", "id")`, core.ErrInvalidOption)
	}
	return (&guarded{m, key}).handle, nil
}

// guarded is the middleware of PerKey.
type guarded struct {
	m   *httplock.Middleware
	key KeyFunc
}

func (g *guarded) handle(c *gin.Context) {
	if c.FullPath() != "" {
		serve(c, g.m, g.key)
	}
}

// FromConfig returns middleware for a whole engine, r.Use(ginlock.FromConfig(routes)),
// that guards each request as routes says for its method and c.FullPath(). [Routes] that
// it does not know need no key. Put it in front of the routes that it is for, as all of
// gin's middleware; Routes finds those that it does not guard. It panics if routes is
// nil, with an error that wraps core.ErrInvalidOption.
func FromConfig(routes httplock.Routes) gin.HandlerFunc {
	if nilcheck.IsNil(routes) {
		panic(fmt.Errorf("ginlock: %w: FromConfig: the routes are nil: give it a config.Runtime, or httplock.Routes of yours", core.ErrInvalidOption))
	}
	return (&configured{routes}).handle
}

// configured is the middleware of FromConfig.
type configured struct{ routes httplock.Routes }

func (f *configured) handle(c *gin.Context) {
	if c.FullPath() == "" {
		return
	}
	if route, found := f.routes.Route(c.Request.Method, c.FullPath()); found {
		serve(c, route.Middleware, route.Key)
	}
}

// Lease returns the lease under which the request runs, the innermost if there are several. Nil and
// false: there is none, as for a GET that needs no key.
func Lease(c *gin.Context) (*core.Lease, bool) {
	if c.Request == nil { // a context of somebody's test
		return nil, false
	}
	return core.LeaseFrom(c.Request.Context())
}

// WithSharedSafeMethods is httplock.WithSharedSafeMethods: GET and HEAD share the key.
func WithSharedSafeMethods() httplock.Option { return httplock.WithSharedSafeMethods() }

// WithPrincipal is httplock.WithPrincipal in gin's terms: f returns who sends a request, from what
// earlier middleware left in c. It is for ginlock's middleware only.
func WithPrincipal(f func(*gin.Context) (string, error)) httplock.Option {
	if f == nil {
		return httplock.WithPrincipal(nil)
	}
	return httplock.WithPrincipal(func(r *http.Request) (string, error) {
		c, is := httplock.FrameworkFrom(r.Context()).(*gin.Context)
		if !is {
			return "", errors.New("ginlock: WithPrincipal is for ginlock's middleware only")
		}
		return f(c)
	})
}

// WithConflictHandler is httplock.WithConflictHandler in gin's terms: f answers the
// requests whose key is held. The chain is aborted either way. If f writes nothing, the
// problem document is written; c.Status alone writes nothing.
func WithConflictHandler(f func(*gin.Context, *httplock.Problem)) httplock.Option {
	return httplock.WithConflictHandler(problemHandler(f))
}

// WithErrorHandler is httplock.WithErrorHandler in gin's terms: f answers all other
// problems, and conflicts too if there is no WithConflictHandler. For a lost lease it is
// called after the chain.
func WithErrorHandler(f func(*gin.Context, *httplock.Problem)) httplock.Option {
	return httplock.WithErrorHandler(problemHandler(f))
}

func problemHandler(f func(*gin.Context, *httplock.Problem)) httplock.ProblemHandler {
	if f == nil {
		return nil
	}
	return func(_ http.ResponseWriter, _ *http.Request, p *httplock.Problem) {
		if c, is := p.Framework.(*gin.Context); is {
			f(c, p)
		}
	}
}

func serve(c *gin.Context, m *httplock.Middleware, key KeyFunc) {
	s := servings.Get().(*serving)
	s.c, s.writer, s.key = c, c.Writer, key
	x := s.x
	x.Writer, x.Request, x.Name, x.Framework = c.Writer, c.Request, c.Request.Method+" "+c.FullPath(), c
	ran := m.Serve(x)
	s.c, s.writer, s.key, s.tee = nil, nil, nil, nil
	servings.Put(s)
	if !ran {
		c.Abort()
	}
}

// serving is a request on its way through serve. It is used again, so that the functions of an
// Exchange are made once for many requests.
type serving struct {
	c      *gin.Context
	writer gin.ResponseWriter
	key    KeyFunc
	tee    *teeWriter        // for those who want to see the response
	x      httplock.Exchange // of which the functions are the serving's
}

var servings = sync.Pool{New: func() any {
	s := &serving{}
	params := func(yield func(name, value string) bool) {
		for _, p := range s.c.Params {
			if !yield(p.Key, p.Value) {
				return
			}
		}
	}
	s.x = httplock.Exchange{
		Key: func() (string, error) {
			return httplock.Match{Pattern: s.c.FullPath(), Params: params, Framework: s.c}.Key(s.key, s.c.Request)
		},
		Next: s.next,
		Tee: func(wrap func(http.ResponseWriter) http.ResponseWriter, whole bool) {
			s.tee = &teeWriter{s.c.Writer, wrap(s.c.Writer), whole}
			s.c.Writer = s.tee
		},
		Written: func() bool { return s.writer.Written() },
		Status:  func() int { return s.writer.Status() },
	}
	return s
}}

// next runs the handlers with r, and has c show the lease of r meanwhile: c.Request.Context() is not asked for
// values of c unless Engine.ContextWithFallback is set.
func (s *serving) next(r *http.Request) {
	c, tee, returned := s.c, s.tee, false
	outer := c.Request
	defer func() {
		c.Request = outer
		tee.end(c, returned)
	}()
	c.Request = r
	if lease, held := core.LeaseFrom(r.Context()); held {
		c.Set(leasekey.Lease, lease)
		defer func() {
			before, _ := core.LeaseFrom(outer.Context())
			c.Set(leasekey.Lease, before)
		}()
	}
	c.Next()
	returned = true
}
