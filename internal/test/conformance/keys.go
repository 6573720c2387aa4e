package conformance

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/locktest"
	"github.com/perkey-go/perkey/retry"
)

// keyed guards the order by a key function.
func keyed(b *testbed.Fixture, key httplock.KeyFunc) Lock {
	return Lock{b.Locker.Guard(core.RejectConflicts), key, nil}
}

// keyTo is a handler that tells its key.
func keyTo(keys chan<- string) Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		key := ""
		if lease, held := core.LeaseFrom(r.Context()); held {
			key = lease.Key()
		}
		keys <- key
		return ok(w, r)
	}
}

// decodedOnce: however a client writes a path, a value has one key, and two values never have the same.
func decodedOnce(t *fixture) {
	b := t.setUp()
	keys := make(chan string, 1)
	s := t.serve(App{Routes: []Route{
		order(http.MethodPost, keyTo(keys), keyed(b, httplock.Param("", "id"))),
		{Method: http.MethodPost, Pattern: "/of/{tenant}/orders/{id}", Chain: []Step{keyed(b, httplock.Param("", "id"))}, Handler: keyTo(keys)},
	}})
	for path, want := range map[string]string{
		"/orders/42":                   "42",
		"/orders/%34%32":               "42",
		"/orders/a%20b":                "a b",
		"/orders/42%25":                "42%",
		"/orders/42%2525":              "42%25",
		"/orders/%34%32%2525":          "42%25",
		"/orders/%2534%2532":           "%34%32",
		"/of/x/orders/%34%32%2525":     "42%25",
		"/of/%34%32/orders/%2534%2532": "%34%32", // the path has %34%32 in both forms
		"/of/%2534%2532/orders/%34%32": "42",
	} {
		t.requireOK(t.send(s, http.MethodPost, path, ""))
		require.Equal(t, want, await(t, keys, "the key"), path)
	}
}

// aliases: what a service takes for one thing has one key, however it is written.
func aliases(t *fixture) {
	b := t.setUp()
	const id = "F81D4FAE-7dec-11d0-a765-00a0c91e6bf6"
	for _, c := range []struct { // in this order: what fails first is always the same
		name    string
		key     httplock.KeyFunc
		policy  core.ConflictPolicy
		aliases []string
		want    string
		refused []string
	}{
		{
			"ParamInt", httplock.ParamInt("order:", "id"), nil, locktest.IntAliases(42), "order:42",
			[]string{"42%20", "%2042", "42.0", "0x2A", "4_2", "forty", "%00", "-"},
		},
		{"ParamInt, below zero", httplock.ParamInt("order:", "id"), nil, locktest.IntAliases(-7), "order:-7", []string{"+-7"}},
		{"ParamUUID", httplock.ParamUUID("order:", "id"), nil, locktest.UUIDAliases(id), "order:" + strings.ToLower(id), []string{id + "%20", "42", id[1:]}},
		{"Canonical", httplock.Canonical(httplock.Param("user:", "id"), func(k string) (string, error) {
			return strings.ToLower(strings.TrimSpace(k)), nil
		}), retry.Policy{MaxWait: time.Minute}, []string{"ann", "Ann", "ANN", "ann%20", "%41nn"}, "user:ann", nil},
	} {
		keys := make(chan string, 1)
		s := t.serve(orders(keyTo(keys), keyed(b, c.key)))
		for _, alias := range c.aliases {
			resp := t.send(s, http.MethodPost, "/orders/"+alias, "")
			if resp.Status == http.StatusBadRequest && (strings.HasPrefix(alias, "%20") || strings.HasSuffix(alias, "%20")) {
				continue
			}
			t.requireOK(resp)
			require.Equal(t, c.want, await(t, keys, "the key"), "%s: %s", c.name, alias)
		}
		for _, alias := range c.refused {
			testbed.RequireProblem(t, t.send(s, http.MethodPost, "/orders/"+alias, ""), http.StatusBadRequest, "bad-key", false)
		}
		locktest.RequireOneAtATime(t, func(work http.Handler) http.Handler {
			return t.adapter.New(orders(func(w http.ResponseWriter, r *http.Request) error {
				work.ServeHTTP(w, r)
				return nil
			}, Lock{b.Locker.Guard(c.policy), c.key, nil}))
		}, func(alias string) *http.Request {
			return testbed.Request(t, http.MethodPost, "/orders/"+alias, "")
		}, c.aliases...)
	}
}

const urlencoded = "application/x-www-form-urlencoded"

// typed is a request with a Content-Type.
func (t *fixture) typed(s *site, path, contentType, body string) *http.Request {
	t.Helper()
	r := t.request(s, http.MethodPost, path, body)
	r.Header.Set("Content-Type", contentType)
	return r
}

// forms: a field of a form makes the key, and the handler has the whole form.
func forms(t *fixture) {
	b := t.setUp()
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		lease, held := core.LeaseFrom(r.Context())
		if assert.True(t, held) {
			assert.Equal(t, testbed.OrderKey, lease.Key())
		}
		assert.Equal(t, testbed.Secret, r.FormValue("order"), "the handler takes the same value")
		assert.Equal(t, "more", r.PostFormValue("note"))
		return ok(w, r)
	}, keyed(b, httplock.Form("order:", "order"))))

	parts, boundary := multipartForm(t, [][2]string{{"order", testbed.Secret}, {"note", "more"}})
	twoParts, twoBoundary := multipartForm(t, [][2]string{{"order", testbed.Secret}, {"order", "7"}})
	for name, c := range map[string]struct {
		kind, query, body string
		status            int
	}{
		"urlencoded":               {urlencoded, "", "order=" + testbed.Secret + "&note=more", http.StatusOK},
		"with a charset":           {urlencoded + "; charset=utf-8", "?q=1", "note=more&order=%73" + testbed.Secret[1:], http.StatusOK},
		"multipart":                {boundary, "", parts, http.StatusOK},
		"twice":                    {urlencoded, "", "order=" + testbed.Secret + "&order=7", http.StatusBadRequest},
		"twice, multipart":         {twoBoundary, "", twoParts, http.StatusBadRequest},
		"in the query too":         {urlencoded, "?order=7", "order=" + testbed.Secret, http.StatusBadRequest},
		"in the query, multipart":  {boundary, "?order=7", parts, http.StatusBadRequest},
		"in the query alone":       {urlencoded, "?order=7", "note=more", http.StatusBadRequest},
		"missing":                  {urlencoded, "", "note=more", http.StatusBadRequest},
		"empty":                    {urlencoded, "", "order=&note=more", http.StatusBadRequest},
		"malformed":                {urlencoded, "", "order=" + testbed.Secret + "&%zz", http.StatusBadRequest},
		"malformed, multipart":     {boundary, "", parts[:len(parts)/2], http.StatusBadRequest},
		"another type":             {"application/json", "", `{"order": "1"}`, http.StatusBadRequest},
		"no type":                  {"", "", "order=" + testbed.Secret, http.StatusBadRequest},
		"multipart, no boundary":   {"multipart/form-data", "", parts, http.StatusBadRequest},
		"too large":                {urlencoded, "", "order=" + testbed.Secret + "&note=" + text(httplock.MaxJSONBody), http.StatusRequestEntityTooLarge},
		"value with control bytes": {urlencoded, "", "order=" + testbed.Secret + "%00", http.StatusBadRequest},
	} {
		resp := t.do(s, t.typed(s, "/orders/1"+c.query, c.kind, c.body))
		require.Equal(t, c.status, resp.Status, "%s: %s", name, resp.Body)
		testbed.RequireNoSecret(t, resp)
	}
}

func multipartForm(t *fixture, fields [][2]string) (body, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, f := range fields {
		require.NoError(t, w.WriteField(f[0], f[1]))
	}
	require.NoError(t, w.Close())
	return b.String(), w.FormDataContentType()
}

// noKey: a request that needs no key runs without one, whatever holds the others up, and has its body for as long as
// it takes to send it.
func noKey(t *fixture) {
	b, proxy := t.breakable()
	form := httplock.Form("", "order")
	key := func(r *http.Request) (string, error) {
		if r.Header.Get(slowHeader) != "" {
			return "", httplock.NoKey
		}
		order, err := form(r)
		if err == nil && order == "none" {
			err = httplock.NoKey
		}
		return "order:" + order, err
	}
	var want string
	opts := []httplock.Option{httplock.WithBodyTimeout(shortBodyTime)}
	joined := httplock.Join(httplock.Hash(key), httplock.Canonical(key, func(k string) (string, error) { return k, nil }))
	for _, key := range []httplock.KeyFunc{key, joined} {
		t.overBoth(func() App {
			return orders(func(w http.ResponseWriter, r *http.Request) error {
				_, held := core.LeaseFrom(r.Context())
				assert.False(t, held)
				assert.Equal(t, want, readTwice(t, r))
				return ok(w, r)
			}, Lock{b.Locker.Guard(testbed.Patient{}), key, opts})
		}, func(s *site) {
			proxy.Refuse(true)
			want = url.Values{"order": {"none"}, "note": {text(10_000)}}.Encode()
			t.requireOK(t.do(s, t.typed(s, "/orders/1", urlencoded, want)))

			want = text(10)
			slow := t.slowly(s, want, 1, true)
			time.AfterFunc(2*shortBodyTime, slow.finish)
			t.requireOK(await(t, slow.answer, "the response"))

			testbed.RequireProblem(t, t.do(s, t.typed(s, "/orders/1", urlencoded, "order=1")), http.StatusServiceUnavailable, "unavailable", true)
			proxy.Refuse(false)
		})
	}
}
