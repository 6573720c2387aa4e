package locktest

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
)

// RequireGuardWaits fails the test if the guard of a route does not wait for its handler: because a time-out middleware
// between them runs the handler on another goroutine, and returns before it
// does. The key is then released while the handler runs. route
// builds the service's route, with all its middleware, around work, which stands for the handler, or for what that calls. r is
// a request that reaches it.
//
// A time-out that never ends in the test is found too. A middleware that runs the handler on another goroutine, but waits for
// it, also fails the test.
func RequireGuardWaits(t TB, route func(work http.Handler) http.Handler, r *http.Request) {
	t.Helper()
	var ran, guarded atomic.Bool
	recorder := httptest.NewRecorder()
	route(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		guarded.Store(behindGuard())
		ran.Store(true)
	})).ServeHTTP(recorder, r)
	switch {
	case !ran.Load():
		t.Fatalf("locktest: the request did not run: it was answered with %d", recorder.Code)
	case !guarded.Load():
		t.Fatalf("locktest: the handler does not run within its guard: the route has none, or a middleware behind the guard, such as a time-out, " +
			"runs the handler on another goroutine, and its key is released while it runs: put httplock.Timeout in front of the guard instead")
	}
}

// behindGuard reports whether a guard called this goroutine's handler.
func behindGuard() bool {
	var callers [512]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "perkey/core.(*Guard).Do") {
			return true
		}
		if !more {
			return false
		}
	}
}
