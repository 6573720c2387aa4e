package ginlock

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
)

// PerKey returns middleware that runs one request at a time per key.
//
// A mistake in its arguments is logged once, and every request is then refused
// with 500. New reports it instead.
func PerKey(guard *core.Guard, key KeyFunc, opts ...httplock.Option) gin.HandlerFunc {
	h, err := New(guard, key, opts...)
	if err != nil {
		return handler(httplock.FailClosed(err), key)
	}
	return h
}

// New is PerKey for those who check: its error wraps core.ErrInvalidOption.
func New(guard *core.Guard, key KeyFunc, opts ...httplock.Option) (gin.HandlerFunc, error) {
	m, err := httplock.New(guard, opts...)
	if err == nil && key == nil {
		err = fmt.Errorf("ginlock: %w: the key function is nil", core.ErrInvalidOption)
	}
	if err != nil {
		return nil, err
	}
	return handler(m, key), nil
}

// FromConfig returns middleware for a whole engine, r.Use(ginlock.FromConfig(routes)),
// that guards each request as its route says: routes is asked with the request's method
// and c.FullPath(). Put it in front of the routes that it is for, as all of gin's
// middleware; those that it does not know need no key. Without routes every request is
// refused with 500.
func FromConfig(routes httplock.Routes) gin.HandlerFunc {
	if routes == nil {
		return handler(httplock.FailClosed(fmt.Errorf("ginlock: %w: FromConfig: the routes are nil", core.ErrInvalidOption)), nil)
	}
	return func(c *gin.Context) {
		if c.FullPath() == "" {
			return
		}
		if route, guarded := routes.Route(c.Request.Method, c.FullPath()); guarded {
			serve(c, route.Middleware, route.Key)
		}
	}
}

// Lease returns the lease that the request runs under, the innermost if there are
// several. Nil and false: it runs under none, as a GET that needs no key.
func Lease(c *gin.Context) (*core.Lease, bool) {
	if c.Request == nil { // a context of somebody's test
		return nil, false
	}
	return core.LeaseFrom(c.Request.Context())
}

// SharedForSafeMethods is httplock's option of that name: GET and HEAD take
// the key together with one another.
func SharedForSafeMethods() httplock.Option { return httplock.SharedForSafeMethods() }

// WithPrincipal is httplock.WithPrincipal in gin's terms: f says who sends a request, by what earlier middleware left in
// c. It is for ginlock's middleware only.
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
// requests whose key is held. The chain is aborted in any case. If f writes nothing,
// the problem document is written: c.Status alone writes nothing.
func WithConflictHandler(f func(*gin.Context, *httplock.Problem)) httplock.Option {
	return httplock.WithConflictHandler(problemHandler(f))
}

// WithErrorHandler is httplock.WithErrorHandler in gin's terms: f answers all other
// problems, and conflicts too if there is no WithConflictHandler. When the lease was
// lost, it is called after the chain.
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

func handler(m *httplock.Middleware, key KeyFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		if c.FullPath() != "" {
			serve(c, m, key)
		}
	}
}

func serve(c *gin.Context, m *httplock.Middleware, key KeyFunc) {
	var tap *tapped // for those who want to see the response
	ran := m.Serve(httplock.Exchange{
		Writer:  c.Writer,
		Request: c.Request,
		Name:    c.Request.Method + " " + c.FullPath(),
		Key:     func() (string, error) { return keyOf(c, key) },
		Next: func(r *http.Request) {
			outer, returned := c.Request, false
			defer func() {
				c.Request = outer
				tap.end(c, returned)
			}()
			c.Request = r
			c.Next()
			returned = true
		},
		Tap: func(wrap func(http.ResponseWriter) http.ResponseWriter) {
			tap = &tapped{c.Writer, wrap(c.Writer)}
			c.Writer = tap
		},
		Written:   c.Writer.Written,
		Framework: c,
	})
	if !ran {
		c.Abort()
	}
}
