package conformance

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
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
	resp, err := testbed.Send(s.client, t.withKey(s, key, body))
	require.NoError(t, err)
	return resp
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
		err  error
		runs int
	}{
		"the client's fault": {t.adapter.Error(http.StatusUnprocessableEntity), 1},
		"ours":               {t.adapter.Error(http.StatusBadGateway), 2},
		"any":                {errors.New("theirs"), 2},
	} {
		handler, runs := counted(func(http.ResponseWriter, *http.Request) error { return test.err })
		seen := make(chan spy, 2)
		s := t.serve(orders(handler, spying(seen), t.remembering(b, nil)))
		key := `"` + name + `"`
		first := t.keyed(s, key, "{}")
		second := t.keyed(s, key, "{}")
		if test.runs == 1 {
			require.Equal(t, http.StatusUnprocessableEntity, first.Status, name)
			requireStored(t, first, second)
		} else {
			require.GreaterOrEqual(t, first.Status, http.StatusInternalServerError, name)
			require.Equal(t, first.Status, second.Status, name)
			t.requireRanAgain(second)
		}
		require.NoError(t, await(t, seen, "the middleware in front").err, name+": the error was answered: it is not returned to be answered again")
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

// otherPrincipal: whoever guesses another's key does not see the other's response, however the two say who they are.
func otherPrincipal(t *fixture) {
	b := t.setUp()
	for _, carrier := range []string{"Authorization", "Cookie", "X-Api-Key", "X-Auth-Token", "X-Shop-Pass"} {
		handler, runs := counted(func(w http.ResponseWriter, r *http.Request) error {
			_, err := io.WriteString(w, "for "+r.Header.Get(carrier))
			return err
		})
		user := httplock.WithPrincipal(func(r *http.Request) (string, error) {
			return strings.TrimSuffix(r.Header.Get(carrier), "'s key"), nil
		})
		s := t.serve(orders(handler, lock(b, nil, httplock.WithIdempotency(t.store(b)), user)))
		send := func(credentials string) testbed.Answer {
			r := t.withKey(s, carrier, "{}")
			r.Header.Set(carrier, credentials)
			resp, err := testbed.Send(s.client, r)
			require.NoError(t, err)
			return resp
		}
		alice := send("alice's key")
		require.Equal(t, "for alice's key", alice.Body)
		require.Equal(t, "for bob's key", send("bob's key").Body, carrier)
		requireStored(t, alice, send("alice's key"))
		require.EqualValues(t, 2, runs.Load(), carrier)
	}
}

func otherPayload(t *fixture) {
	b := t.setUp()
	handler, runs := counted(ok)
	s := t.serve(orders(handler, t.remembering(b, nil)))
	first := t.keyed(s, "k", "{}")
	for _, body := range []string{"{2}", ""} {
		testbed.RequireProblem(t, t.keyed(s, "k", body), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	}
	r := t.withKey(s, "k", "{}")
	r.URL.RawQuery = "x=1"
	resp, err := testbed.Send(s.client, r)
	require.NoError(t, err)
	testbed.RequireProblem(t, resp, http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	requireStored(t, first, t.keyed(s, "k", "{}"))
	require.EqualValues(t, 1, runs.Load())
}

// samePayload: a client's library may write one payload in several ways.
func samePayload(t *fixture) {
	b := t.setUp()
	handler, runs := counted(func(w http.ResponseWriter, r *http.Request) error {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
			assert.NoError(t, r.ParseMultipartForm(1<<20))
			assert.Equal(t, "1", r.FormValue("a"))
		}
		return ok(w, r)
	})
	s := t.serve(orders(handler, t.remembering(b, nil)))
	send := func(key, contentType, body string) testbed.Answer {
		r := t.withKey(s, key, body)
		r.Header.Set("Content-Type", contentType)
		resp, err := testbed.Send(s.client, r)
		require.NoError(t, err)
		return resp
	}
	first := send("json", "application/json; charset=utf-8", "{}")
	requireStored(t, first, send("json", `Application/JSON;Charset="UTF-8"`, "{}"))
	require.Equal(t, http.StatusUnprocessableEntity, send("json", "text/plain", "{}").Status)
	form := func(value string) (contentType, body string) {
		var buffer bytes.Buffer
		w := multipart.NewWriter(&buffer)
		assert.NoError(t, w.WriteField("a", value))
		assert.NoError(t, w.Close())
		return w.FormDataContentType(), buffer.String()
	}
	contentType, body := form("1")
	first = send("form", contentType, body)
	t.requireOK(first)
	contentType, body = form("1")
	requireStored(t, first, send("form", contentType, body))
	contentType, body = form("2")
	require.Equal(t, http.StatusUnprocessableEntity, send("form", contentType, body).Status)
	require.EqualValues(t, 2, runs.Load())
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
		r, over := t.withKey(s, "k", "{}"), make(chan testbed.Answer, 1)
		go func() {
			resp, err := testbed.Send(s.client, r)
			assert.NoError(t, err)
			over <- resp
		}()
		return over
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

func keyMissing(t *fixture) {
	b := t.setUp()
	s := t.serve(orders(t.mustNotRun, t.remembering(b, nil, httplock.RequireIdempotencyKey())))
	testbed.RequireProblem(t, t.post(s, "{}"), http.StatusBadRequest, "idempotency-key-missing", false)
	testbed.RequireProblem(t, t.keyed(s, "a b", "{}"), http.StatusBadRequest, "idempotency-key-malformed", false)
	b.RequireFree(t)
}
