package conformance

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// store is where b's guards keep responses.
func (t *fixture) store(b *testbed.Fixture) *idempotency.Store {
	t.Helper()
	store, err := idempotency.New(b.Redis, idempotency.WithPrefix(b.Prefix))
	require.NoError(t, err)
	return store
}

// remembering is a lock that looks at Idempotency-Key.
func (t *fixture) remembering(b *testbed.Fixture, policy core.ConflictPolicy, opts ...httplock.IdempotencyOption) Lock {
	t.Helper()
	return lock(b, policy, httplock.WithIdempotency(t.store(b), opts...), httplock.WithAnonymous())
}

// sentBy has all requests come from one principal.
func sentBy(principal string) httplock.Option {
	return httplock.WithPrincipal(func(*http.Request) (string, error) { return principal, nil })
}

// counted is h, and how often it was called.
func counted(h Handler) (Handler, *atomic.Int64) {
	var runs atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) error {
		runs.Add(1)
		return h(w, r)
	}, &runs
}

// keyed posts a body to the order under an Idempotency-Key.
func (t *fixture) keyed(s *site, key, body string) testbed.Answer {
	t.Helper()
	return t.do(s, t.withKey(s, key, body))
}

func (t *fixture) withKey(s *site, key, body string) *http.Request {
	t.Helper()
	r := t.request(s, http.MethodPost, testbed.OrderPath, body)
	r.Header.Set("Idempotency-Key", key)
	return r
}

// requireStored checks that second is first, but for what only one of the two has.
func requireStored(t *fixture, first, second testbed.Answer) {
	t.Helper()
	require.Equal(t, "true", second.Header.Get("Idempotent-Replayed"), "it is not the stored response: %d", second.Status)
	require.NotContains(t, first.Header, "Idempotent-Replayed")
	require.Equal(t, "no-store", second.Header.Get("Cache-Control"))
	for _, a := range []testbed.Answer{first, second} {
		if length := a.Header.Get("Content-Length"); length != "" { // the first may be chunked
			require.Equal(t, strconv.Itoa(len(a.Body)), length)
		}
		for _, name := range []string{"Content-Length", "Date", "Idempotent-Replayed", "Cache-Control", "X-Content-Type-Options"} {
			a.Header.Del(name)
		}
	}
	require.Equal(t, first, second)
}

func (t *fixture) requireRanAgain(resp testbed.Answer) {
	t.Helper()
	require.NotContains(t, resp.Header, "Idempotent-Replayed")
}

// madeTwice: the second has the first one's response, whoever has the key, and nothing
// behind the guard runs for it. It is long since most of it is a table.
func madeTwice(t *fixture) {
	b := t.setUp()
	binary := "\x00\xff\r\n\xc3\x28" + strings.Repeat("\x80", 5000)
	for name, test := range map[string]struct {
		handler Handler
		status  int
		body    string
	}{
		"headers and a body": {func(w http.ResponseWriter, _ *http.Request) error {
			h := w.Header()
			h.Set("Content-Type", "application/octet-stream")
			h.Set("Etag", `"v1"`)
			h.Add("Link", "</a>; rel=x")
			h.Add("Link", "</b>; rel=y")
			h.Set("Location", "things/7")
			h.Set("X-Mine", "caf\xe9")
			w.WriteHeader(http.StatusCreated)
			for rest := binary; rest != ""; {
				n, err := w.Write([]byte(rest[:min(len(rest), 1000)]))
				assert.NoError(t, err)
				rest = rest[n:]
			}
			return nil
		}, http.StatusCreated, binary},
		"io.WriteString": {func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "text/plain")
			_, err := io.WriteString(w, "caf\u00e9")
			return err
		}, http.StatusOK, "caf\u00e9"},
		"the client's fault": {func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, err := io.WriteString(w, "{}")
			return err
		}, http.StatusNotFound, "{}"},
		"no content": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusNoContent)
			return nil
		}, http.StatusNoContent, ""},
		"a status alone": {func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Etag", `"v2"`)
			w.WriteHeader(http.StatusAccepted)
			return nil
		}, http.StatusAccepted, ""},
		"nothing": {func(http.ResponseWriter, *http.Request) error { return nil }, http.StatusOK, ""},
	} {
		handler, runs := counted(test.handler)
		var behind atomic.Int64
		s := t.serve(orders(handler, t.remembering(b, nil, httplock.KeepResponseHeaders("X-Mine")), Middleware(func(c Context) error {
			behind.Add(1)
			return c.Next()
		})))
		key := `"` + name + `"`
		first := t.keyed(s, key, "{}")
		require.Equal(t, test.status, first.Status, name)
		require.Equal(t, test.body, first.Body, name)
		requireStored(t, first, t.keyed(s, key, "{}"))
		release := b.Hold(t)
		requireStored(t, first, t.keyed(s, key, "{}"))
		release()
		require.EqualValues(t, 1, runs.Load(), "%s: the handler's runs", name)
		require.EqualValues(t, 1, behind.Load(), "%s: runs behind the guard", name)
		t.requireRanAgain(t.keyed(s, `"not `+name+`"`, "{}"))
		t.requireRanAgain(t.post(s, "{}"))
		require.EqualValues(t, 3, runs.Load(), "%s: other requests run", name)
		b.RequireFree(t)
	}
}

// errorsStored: what the framework makes of a handler's error is its response, and is made once.
func errorsStored(t *fixture) {
	b := t.setUp()
	for name, test := range map[string]struct {
		err    error
		begun  bool // the handler has answered
		status int
		runs   int
	}{
		"the client's fault":     {t.adapter.Error(http.StatusUnprocessableEntity), false, http.StatusUnprocessableEntity, 1},
		"ours":                   {t.adapter.Error(http.StatusBadGateway), false, http.StatusBadGateway, 2},
		"any":                    {errors.New("theirs"), false, http.StatusInternalServerError, 2},
		"any after the response": {errors.New("theirs"), true, http.StatusCreated, 1},
	} {
		handler, runs := counted(func(w http.ResponseWriter, _ *http.Request) error {
			if test.begun {
				w.WriteHeader(http.StatusCreated)
			}
			return test.err
		})
		seen := make(chan spy, 2)
		s := t.serve(orders(handler, spying(seen), t.remembering(b, nil)))
		key := `"` + name + `"`
		first := t.keyed(s, key, "{}")
		second := t.keyed(s, key, "{}")
		require.Equal(t, test.status, first.Status, name)
		if test.runs == 1 {
			requireStored(t, first, second)
		} else {
			require.Equal(t, first.Status, second.Status, name)
			t.requireRanAgain(second)
		}
		if err := await(t, seen, "the middleware in front").err; !test.begun {
			require.NoError(t, err, name+": the error was answered: it is not returned to be answered again")
		}
		require.EqualValues(t, test.runs, runs.Load(), "%s: the handler's runs", name)
		b.RequireFree(t)
	}
}

// failuresRunAgain: what failed may be tried again, and so may what only asks for that.
func failuresRunAgain(t *fixture) {
	b := t.setUp()
	for name, first := range map[string]Handler{
		"a status alone": func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusInternalServerError)
			return nil
		},
		"a body": func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusBadGateway)
			_, err := io.WriteString(w, "no")
			return err
		},
		"sign in": func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusUnauthorized)
			return nil
		},
		"a panic": panicking("boom"),
	} {
		for at, chain := range map[string][]Step{
			"outside": {Recovery{}, t.remembering(b, nil)}, "inside": {t.remembering(b, nil), Recovery{}},
		} {
			handler, runs := counted(ok)
			failing := func(w http.ResponseWriter, r *http.Request) error {
				if runs.Load() == 0 {
					runs.Add(1)
					return first(w, r)
				}
				return handler(w, r)
			}
			s := t.start(t.adapter.New(orders(failing, chain...)), t.notCaught)
			key := `"` + name + ", recovery " + at + `"`
			require.GreaterOrEqual(t, t.keyed(s, key, "{}").Status, http.StatusUnauthorized, key)
			second := t.keyed(s, key, "{}")
			t.requireRanAgain(second)
			t.requireOK(second)
			third := t.keyed(s, key, "{}")
			require.Equal(t, "true", third.Header.Get("Idempotent-Replayed"), key)
			require.EqualValues(t, 2, runs.Load(), "%s: the handler's runs", key)
		}
	}
}

// inProgress: the same request again meets the guard's policy, and has the response if it waits for it.
func inProgress(t *fixture) {
	b := t.setUp()
	entered, gate := make(chan struct{}, 10), make(chan struct{})
	handler, runs := counted(func(w http.ResponseWriter, r *http.Request) error {
		entered <- struct{}{}
		t.pause(gate)
		return ok(w, r)
	})
	refusing := t.serve(orders(handler, t.remembering(b, nil)))
	waiting := t.serve(orders(handler, t.remembering(b, testbed.Patient{})))
	sending := func(s *site) <-chan testbed.Answer {
		return t.atOnce(s, 1, func(int) *http.Request { return t.withKey(s, "k", "{}") })
	}
	first := sending(refusing)
	await(t, entered, "the handler runs")
	testbed.RequireProblem(t, t.keyed(refusing, "k", "{}"), http.StatusConflict, "conflict", true)
	testbed.RequireProblem(t, t.keyed(refusing, "k", "{2}"), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	t.onConflict(b, func() { close(gate) })
	second := sending(waiting)
	requireStored(t, await(t, first, "the response"), await(t, second, "the same response"))
	require.EqualValues(t, 1, runs.Load(), "the handler's runs")
	b.RequireFree(t)
}
