package conformance

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// Adapter is an adapter under test, with its framework.
type Adapter struct {
	// Name is the adapter's in the report, such as "gin".
	Name string
	// New builds the framework's engine, as its users would, without anything that
	// App does not ask for. Each call builds a new one.
	New func(App) http.Handler
	// Error makes an error that the framework answers with a status, if its handlers return errors.
	Error func(status int) error
	// Lacks says what the framework cannot do, and why. Nil: nothing.
	Lacks map[Capability]string
}

// Capability is what not every framework can do.
type Capability string

const (
	// EngineWide says that middleware of the whole engine knows whether a route was matched.
	EngineWide Capability = "engine-wide middleware knows the route"
	// HandlerErrors says that handlers return errors, and the framework answers them with 500.
	HandlerErrors Capability = "handlers return errors"
)

var capabilities = map[Capability]bool{EngineWide: true, HandlerErrors: true}

func (a Adapter) validate() error {
	if a.Name == "" || a.New == nil {
		return fmt.Errorf("conformance: adapter %q has no name or no New", a.Name)
	}
	if _, lacks := a.Lacks[HandlerErrors]; !lacks && a.Error == nil {
		return fmt.Errorf("conformance: adapter %s has no Error, and does not lack %q", a.Name, HandlerErrors)
	}
	for c, why := range a.Lacks {
		if !capabilities[c] || why == "" {
			return fmt.Errorf("conformance: adapter %s lacks %q: no such capability, or no reason", a.Name, c)
		}
	}
	return nil
}

// logging is a, whose guards log to said unless they have a logger.
func (a Adapter) logging(said *testbed.Log) Adapter {
	build, log := a.New, httplock.WithLogger(said.Logger())
	steps := func(steps []Step) []Step {
		steps = slices.Clone(steps)
		for i, s := range steps {
			if l, is := s.(Lock); is {
				l.Options = append([]httplock.Option{log}, l.Options...)
				steps[i] = l
			}
		}
		return steps
	}
	a.New = func(app App) http.Handler {
		app.Use, app.Routes = steps(app.Use), slices.Clone(app.Routes)
		for i := range app.Routes {
			app.Routes[i].Chain = steps(app.Routes[i].Chain)
		}
		return build(app)
	}
	return a
}

// App is what an engine is built from.
type App struct {
	// Use is middleware of the whole engine, the outermost first. It is empty for a framework that lacks EngineWide.
	Use    []Step
	Routes []Route
}

// Route is a handler at a method and a path.
type Route struct {
	Method string
	// Pattern is as http.ServeMux has it: "/orders/{id}".
	Pattern string
	// Chain is the middleware in front of Handler, the outermost first.
	Chain   []Step
	Handler Handler
}

// Colon is the pattern as many routers have it: "/orders/:id".
func (r Route) Colon() string { return wildcard.ReplaceAllString(r.Pattern, ":$1") }

var wildcard = regexp.MustCompile(`\{(\w+)\}`)

// Handler is a handler in no framework's terms: it gets the framework's writer
// and request. Its error is for frameworks whose handlers return one.
type Handler func(http.ResponseWriter, *http.Request) error

// Step is a Lock, a Middleware or a Recovery.
type Step interface{ step() }

// Lock is the adapter's PerKey. What is wrong in it is handed on as it is.
type Lock struct {
	Guard   *core.Guard
	Key     httplock.KeyFunc
	Options []httplock.Option
}

// Middleware is middleware in no framework's terms. Its error goes to whatever is in front of it, as a handler's does.
type Middleware func(Context) error

// Recovery is the framework's own middleware that makes 500 of a panic. If it has none, Recover is in its place.
type Recovery struct{}

func (Lock) step()       {}
func (Middleware) step() {}
func (Recovery) step()   {}

// Chain makes a framework's middleware of steps: of each Lock and each Middleware by
// a function, and recovery of each Recovery.
func Chain[M any](steps []Step, lock func(Lock) M, recovery M, middleware func(Middleware) M) []M {
	chain := make([]M, 0, len(steps))
	for _, s := range steps {
		switch s := s.(type) {
		case Lock:
			chain = append(chain, lock(s))
		case Middleware:
			chain = append(chain, middleware(s))
		case Recovery:
			chain = append(chain, recovery)
		}
	}
	return chain
}

// Context is what a Middleware sees.
type Context struct {
	// Writer and Request return the framework's, as they are at that time.
	Writer  func() http.ResponseWriter
	Request func() *http.Request
	// Next runs the rest of the chain, once. Its error is the rest's, if handlers of the framework return one.
	Next func() error
}

// Recover answers a panic with 500, unless a response was begun.
func Recover(c Context) error {
	defer func() {
		if v := recover(); v != nil {
			c.Writer().WriteHeader(http.StatusInternalServerError)
		}
	}()
	return c.Next()
}

// NetHTTP is package httplock's adapter. Its responses are those that the others are compared with.
func NetHTTP() Adapter {
	return Adapter{
		Name: "net/http",
		New: func(app App) http.Handler {
			mux := http.NewServeMux()
			for _, r := range app.Routes {
				var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { _ = r.Handler(w, req) })
				for _, mw := range slices.Backward(Chain(r.Chain, netHTTPLock, netHTTPMiddleware(Recover), netHTTPMiddleware)) {
					h = mw(h)
				}
				mux.Handle(r.Method+" "+r.Pattern, h)
			}
			return mux
		},
		Lacks: map[Capability]string{
			EngineWide:    "middleware around a mux runs before the mux has matched a route",
			HandlerErrors: "handlers return nothing",
		},
	}
}

func netHTTPLock(l Lock) func(http.Handler) http.Handler {
	return httplock.PerKey(l.Guard, l.Key, l.Options...)
}

func netHTTPMiddleware(mw Middleware) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = mw(Context{
				Writer:  func() http.ResponseWriter { return w },
				Request: func() *http.Request { return r },
				Next: func() error {
					next.ServeHTTP(w, r)
					return nil
				},
			})
		})
	}
}
