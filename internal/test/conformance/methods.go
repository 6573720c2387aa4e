package conformance

import (
	"net/http"
	"slices"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/method"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

var (
	readMethods  = method.Reading
	safeMethods  = append(slices.Clip(readMethods), http.MethodOptions)
	otherMethods = []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodTrace, "FROB"}
)

// everyMethod is an app that serves the order for all methods.
func everyMethod(h Handler, chain ...Step) App {
	var app App
	for _, method := range slices.Concat(safeMethods, otherMethods) {
		app.Routes = append(app.Routes, order(method, h, chain...))
	}
	return app
}

func safeMethodsPass(t *fixture) {
	b, proxy := t.breakable()
	handler := Handler(t.mustNotRun)
	s := t.serve(everyMethod(func(w http.ResponseWriter, r *http.Request) error { return handler(w, r) }, lock(b, nil)))
	b.Hold(t)
	for _, method := range otherMethods {
		require.Equal(t, http.StatusConflict, t.send(s, method, testbed.OrderPath, "").Status, method)
	}
	handler = ok
	proxy.Refuse(true)
	for _, method := range safeMethods {
		require.Equal(t, http.StatusOK, t.send(s, method, testbed.OrderPath, "").Status, method)
	}
	proxy.Refuse(false)
}

func safeMethodsLocked(t *fixture) {
	b := t.setUp()
	handler := Handler(t.mustNotRun)
	s := t.serve(everyMethod(func(w http.ResponseWriter, r *http.Request) error { return handler(w, r) },
		lock(b, nil, httplock.WithLockedSafeMethods())))
	release := b.Hold(t)
	for _, method := range readMethods {
		resp := t.send(s, method, testbed.OrderPath, "")
		require.Equal(t, http.StatusConflict, resp.Status, method)
		require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		require.Equal(t, method == http.MethodHead, resp.Body == "", "HEAD has no body")
	}
	handler = ok
	require.Equal(t, http.StatusOK, t.send(s, http.MethodOptions, testbed.OrderPath, "").Status, "OPTIONS is never locked")
	release()
	for _, method := range readMethods {
		require.Equal(t, http.StatusOK, t.send(s, method, testbed.OrderPath, "").Status, method)
	}
	b.RequireFree(t)
}

func safeMethodsShared(t *fixture) {
	b := t.setUp()
	inside := make(chan string, len(readMethods))
	release := make(chan struct{})
	held := true
	app := everyMethod(t.mustNotRun, lock(b, nil, httplock.WithSharedSafeMethods()))
	for i := range readMethods {
		app.Routes[i].Handler = func(w http.ResponseWriter, r *http.Request) error {
			if held {
				return t.mustNotRun(w, r)
			}
			inside <- r.Method
			t.pause(release)
			return ok(w, r)
		}
	}
	app.Routes[len(readMethods)].Handler = ok // OPTIONS
	s := t.serve(app)

	free := b.Hold(t)
	for _, method := range readMethods {
		require.Equal(t, http.StatusConflict, t.send(s, method, testbed.OrderPath, "").Status, method)
	}
	require.Equal(t, http.StatusOK, t.send(s, http.MethodOptions, testbed.OrderPath, "").Status, "OPTIONS is never locked")
	free()
	held = false

	answers := t.atOnce(s, len(readMethods), func(i int) *http.Request { return t.request(s, readMethods[i], testbed.OrderPath, "") })
	for range readMethods {
		await(t, inside, "safe methods run at the same time")
	}
	testbed.RequireProblem(t, t.post(s, ""), http.StatusConflict, "conflict", true)
	close(release)
	for range readMethods {
		require.Equal(t, http.StatusOK, await(t, answers, "the response").Status)
	}
	b.RequireFree(t)
}

func skips(t *fixture) {
	b := t.setUp()
	b.Hold(t)
	dry := httplock.WithSkip(func(r *http.Request) bool { return r.Header.Get("X-Dry-Run") != "" })
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		assert.NotEmpty(t, r.Header.Get("X-Dry-Run"), "the handler ran")
		return ok(w, r)
	}, lock(b, nil, dry)))
	require.Equal(t, http.StatusConflict, t.post(s, "").Status)
	r := t.request(s, http.MethodPost, testbed.OrderPath, "")
	r.Header.Set("X-Dry-Run", "1")
	t.requireOK(t.do(s, r))
}

// unmatched checks an app whose guard is for POST of the order, and needs Redis, which is away.
func unmatched(t *fixture, b *testbed.Fixture, app App) {
	t.Helper()
	s := t.serve(app)
	require.Equal(t, http.StatusNotFound, t.send(s, http.MethodPost, "/nowhere", "").Status)
	// Which of the two is the framework's choice.
	require.Contains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, t.send(s, http.MethodPut, testbed.OrderPath, "").Status)
	testbed.RequireProblem(t, t.post(s, ""), http.StatusServiceUnavailable, "unavailable", true)
	require.Empty(t, b.Conflicts)
}

func unmatchedBesideGuarded(t *fixture) {
	b, proxy := t.breakable()
	proxy.Refuse(true)
	unmatched(t, b, orders(t.mustNotRun, lock(b, nil)))
}

func unmatchedEngine(t *fixture) {
	b, proxy := t.breakable()
	proxy.Refuse(true)
	key := func(*http.Request) (string, error) { return testbed.OrderKey, nil }
	app := orders(t.mustNotRun)
	app.Use = []Step{Lock{b.Locker.Guard(core.RejectConflicts), key, nil}}
	unmatched(t, b, app)
}
