package conformance_test

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/conformance"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// mutant is the toy's adapter with a mistake in it.
type mutant struct {
	perKey func(conformance.Lock) toyHandler
	hoist  bool // guards of routes are put in front of all routes
	// fails are behaviours that must fail, and a part of what each says.
	fails map[string]string
}

// serve changes how a request is served.
func serve(f func(c *toyContext, m *httplock.Middleware, x httplock.Exchange)) func(conformance.Lock) toyHandler {
	return serveErr(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange, err *error) error {
		f(c, m, x)
		return *err
	})
}

func serveErr(f func(c *toyContext, m *httplock.Middleware, x httplock.Exchange, err *error) error) func(conformance.Lock) toyHandler {
	return func(l conformance.Lock) toyHandler {
		m := middleware(l)
		return func(c *toyContext) error {
			var err error
			return f(c, m, exchange(c, l.Key, &err), &err)
		}
	}
}

// next changes how the rest of the chain is run.
func next(f func(c *toyContext, r *http.Request, next func(*http.Request))) func(conformance.Lock) toyHandler {
	return serve(func(c *toyContext, m *httplock.Middleware, x httplock.Exchange) {
		rest := x.Next
		x.Next = func(r *http.Request) { f(c, r, rest) }
		m.Serve(x)
	})
}

// param changes the path parameter that the key function sees.
func param(f func(id string, r *http.Request) string) func(conformance.Lock) toyHandler {
	return func(l conformance.Lock) toyHandler {
		key := l.Key
		l.Key = func(r *http.Request) (string, error) {
			changed := r.Clone(r.Context())
			changed.SetPathValue("id", f(r.PathValue("id"), r))
			return key(changed)
		}
		return perKey(l)
	}
}

// options changes the guard's options.
func options(f func([]httplock.Option) []httplock.Option) func(conformance.Lock) toyHandler {
	return func(l conformance.Lock) toyHandler {
		l.Options = f(l.Options)
		return perKey(l)
	}
}

// withCtx changes the ctx that the guard sees.
func withCtx(f func(context.Context) (context.Context, context.CancelFunc)) func(conformance.Lock) toyHandler {
	return serve(func(_ *toyContext, m *httplock.Middleware, x httplock.Exchange) {
		ctx, cancel := f(x.Request.Context())
		defer cancel()
		x.Request = x.Request.WithContext(ctx)
		m.Serve(x)
	})
}

// endsLate is a ctx that is over only when its channel is closed.
type endsLate struct {
	context.Context
	over chan struct{}
}

func (c endsLate) Done() <-chan struct{} { return c.over }

func (c endsLate) Err() error {
	select {
	case <-c.over:
		return c.Context.Err()
	default:
		return nil
	}
}

// noValues is a ctx that has lost what it carried.
type noValues struct{ context.Context }

func (noValues) Value(any) any { return nil }

// Each mutant fails what it breaks, and each behaviour is failed by a mutant: there is no check that cannot fail.
func TestMutantsFail(t *testing.T) {
	failed := map[string]bool{}
	all := maps.Clone(mutants)
	maps.Copy(all, idempotencyMutants)
	for name, m := range all {
		for behaviour := range m.fails {
			failed[behaviour] = true
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := toyAdapter(m.perKey)
			if m.hoist {
				build := a.New
				a.New = func(app conformance.App) http.Handler { return build(hoisted(app)) }
			}
			var checks sync.WaitGroup // most only wait
			for behaviour, text := range m.fails {
				env := redistest.Embedded(t)
				checks.Go(func() {
					var said []string
					for range 4 { // a busy machine may fail the check for a reason of its own
						for _, r := range conformance.Check(t, env, a, behaviour) {
							assert.Equal(t, conformance.Failed, r.Outcome, r.Behaviour)
							if strings.Contains(r.Text, text) {
								return
							}
							said = append(said, r.Text)
						}
					}
					assert.Fail(t, "nothing says that it failed for its reason", "%s: not %q: %s", behaviour, text, said)
				})
			}
			checks.Wait()
		})
	}
	for _, behaviour := range conformance.Names() {
		assert.True(t, failed[behaviour], "no mutant fails: "+behaviour)
	}
}

// hoisted is app with its routes' middleware in front of all routes.
func hoisted(app conformance.App) conformance.App {
	for i, r := range app.Routes {
		app.Use = append(app.Use, r.Chain...)
		app.Routes[i].Chain = nil
	}
	return app
}

func TestConformance_SkipsWhatAFrameworkLacks(t *testing.T) {
	a := toyAdapter(perKey)
	a.Lacks = map[conformance.Capability]string{conformance.HandlerErrors: "handlers return nothing"}
	results := conformance.Check(t, redistest.Embedded(t), a, "handler's error is the framework's")
	require.Equal(t, []conformance.Result{
		{Behaviour: "handler's error is the framework's", Outcome: conformance.Lacking, Text: "handlers return nothing"},
	}, results)
}
