package httplock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

type userKey struct{}

func userID(ctx context.Context) (string, bool) {
	id, has := ctx.Value(userKey{}).(string)
	return id, has
}

// keyUnder asks key for the key of a request that matches /o/{id}.
func keyUnder(t *testing.T, key httplock.KeyFunc, r *http.Request) (k string, err error) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /o/{id}", func(_ http.ResponseWriter, r *http.Request) { k, err = key(r) })
	mux.HandleFunc("POST /o/{id}/pay", func(_ http.ResponseWriter, r *http.Request) { k, err = key(r) })
	require.Equal(t, http.StatusOK, testbed.Do(mux, r).Status)
	return k, err
}

func TestKey_KeysAreTakenFromTheRequest(t *testing.T) {
	user := httplock.Value("user:", "user id", userID)
	for name, test := range map[string]struct {
		key    httplock.KeyFunc
		target string
		want   string
	}{
		"param":               {httplock.Param("order:", "id"), "/o/42", "order:42"},
		"param, escaped":      {httplock.Param("order:", "id"), "/o/a%2Fb%20c", "order:a/b c"},
		"query":               {httplock.Query("", "q"), "/o/1?q=a+b&q=2", "a b"},
		"header":              {httplock.Header("h:", "x-order"), "/o/1", "h:seven"},
		"value":               {user, "/o/1", "user:ann"},
		"no prefix":           {httplock.Param("", "id"), "/o/42", "42"},
		"join":                {httplock.Join(user, httplock.Param("order:", "id")), "/o/42", "user:ann|order:42"},
		"join of one":         {httplock.Join(httplock.Param("order:", "id")), "/o/a%7Cb%25", "order:a%7Cb%25"},
		"join in a join":      {httplock.Join(httplock.Join(user, user), user), "/o/1", "user:ann%7Cuser:ann|user:ann"},
		"hash of a short key": {httplock.Hash(httplock.Param("order:", "id")), "/o/42", "order:42"},
	} {
		t.Run(name, func(t *testing.T) {
			r := testbed.Request(t, http.MethodPost, test.target, "")
			r.Header["X-Order"] = []string{"seven", "eight"}
			key, err := keyUnder(t, test.key, r.WithContext(context.WithValue(r.Context(), userKey{}, "ann")))
			require.NoError(t, err)
			require.Equal(t, test.want, key)
		})
	}
}

func TestKey_KeysThatCannotBeTaken(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	empty := func(context.Context) (string, bool) { return "", true }
	for name, test := range map[string]struct {
		key    httplock.KeyFunc
		target string
		kind   string
		log    string
	}{
		"param, empty":        {httplock.Param("k:", "id"), "/empty", "bad-key", ""},
		"param, misnamed":     {httplock.Param("k:", "uid"), "/o/" + testbed.Secret, "internal", `the route POST /o/{id} has no path parameter \"uid\": it has id`},
		"param, of none":      {httplock.Param("k:", "id"), "/none", "internal", `the route /none has no path parameter \"id\", nor any other`},
		"param, unnamed":      {httplock.Param("k:", ""), "/o/" + testbed.Secret, "internal", "the name of the path parameter is empty"},
		"query, missing":      {httplock.Query("k:", "q"), "/o/1", "bad-key", ""},
		"query, empty":        {httplock.Query("k:", "q"), "/o/1?q=&q=" + testbed.Secret, "bad-key", ""},
		"query, control":      {httplock.Query("k:", "q"), "/o/1?q=" + testbed.Secret + "%00", "bad-key", ""},
		"query, too long":     {httplock.Query("k:", "q"), "/o/1?q=" + strings.Repeat(testbed.Secret, 60), "bad-key", ""},
		"query, unnamed":      {httplock.Query("k:", ""), "/o/1?=" + testbed.Secret, "internal", "the name of the query parameter is empty"},
		"header, missing":     {httplock.Header("k:", "X-None"), "/o/1", "bad-key", ""},
		"header, unnamed":     {httplock.Header("k:", ""), "/o/1", "internal", "the name of the header is empty"},
		"header, no name":     {httplock.Header("k:", "X Order"), "/o/1", "internal", `\"X Order\" is not a header's name`},
		"header, credentials": {httplock.Header("k:", "authorization"), "/o/1", "internal", "the header Authorization carries credentials"},
		"header, cookie":      {httplock.Header("k:", "Cookie"), "/o/1", "internal", "the header Cookie carries credentials"},
		"header, host":        {httplock.Header("k:", "Host"), "/o/1", "internal", "r.Host"},
		"value, missing":      {httplock.Value("k:", "user id", userID), "/o/1", "bad-key", ""},
		"value, empty":        {httplock.Value("k:", "user id", empty), "/o/1", "bad-key", ""},
		"value, unnamed":      {httplock.Value("k:", "", userID), "/o/1", "internal", "the name of the value is empty"},
		"value, no function":  {httplock.Value("k:", "user id", nil), "/o/1", "internal", "the function is nil"},
		"join, none":          {httplock.Join(), "/o/1", "internal", "no parts"},
		"join, nil":           {httplock.Join(httplock.Param("k:", "id"), nil), "/o/1", "internal", "a key function is nil"},
		"join, missing":       {httplock.Join(httplock.Param("k:", "id"), httplock.Query("", "q")), "/o/1", "bad-key", ""},
		"join, ours":          {httplock.Join(httplock.Param("k:", "uid"), httplock.Query("", "q")), "/o/1", "internal", "no path parameter"},
		"hash, nil":           {httplock.Hash(nil), "/o/1", "internal", "the key function is nil"},
		"hash, missing":       {httplock.Hash(httplock.Query("k:", "q")), "/o/1", "bad-key", ""},
		"hash, control":       {httplock.Hash(httplock.Query("k:", "q")), "/o/1?q=" + strings.Repeat(testbed.Secret, 80) + "%07", "bad-key", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), test.key,
				httplock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))(mustNotRun(t))
			mux := http.NewServeMux()
			mux.Handle("POST /o/{id}", h)
			mux.Handle("/none", h)
			mux.HandleFunc("/empty", func(w http.ResponseWriter, r *http.Request) {
				r.Pattern = "/o/:id/pay" // of a router that matches empty values
				h.ServeHTTP(w, r)
			})
			r := testbed.Request(t, http.MethodPost, test.target, "")
			r.Header.Set("Authorization", testbed.Secret)
			r.Header.Set("Cookie", testbed.Secret)
			testbed.RequireProblem(t, testbed.Do(mux, r), map[string]int{"bad-key": 400, "internal": 500}[test.kind], test.kind, false)
			require.Contains(t, log.String(), test.log)
			require.Equal(t, test.log == "", log.Len() == 0, "the client's fault is not logged, ours is: %s", &log)
			require.NotContains(t, log.String(), testbed.Secret)
		})
	}
	require.Empty(t, redistest.Keys(t, b.Redis, b.Prefix))
}

func TestKey_ParamsNeedARoute(t *testing.T) {
	_, err := httplock.Param("k:", "id")(testbed.Request(t, http.MethodPost, "/o/1", ""))
	require.ErrorIs(t, err, core.ErrInvalidOption)
	require.ErrorContains(t, err, "was not matched by a route")
}

func TestKey_JoinedKeysDiffer(t *testing.T) {
	join := httplock.Join(httplock.Query("", "a"), httplock.Query("", "b"))
	three := httplock.Join(httplock.Query("", "a"), httplock.Query("", "b"), httplock.Query("", "c"))
	seen := map[string]string{}
	for _, target := range []string{
		"a=a:b&b=c", "a=a&b=b:c", "a=x%7Cy&b=z", "a=x&b=y%7Cz", "a=x%257Cy&b=z", "a=x%7C&b=z", "a=x&b=%7Cz", "a=%25&b=7C", "a=%257C&b=1",
		"a=x&b=y&c=z", "a=x&b=y%7Cz&c=w",
	} {
		key := join
		if strings.Contains(target, "&c=") {
			key = three
		}
		k, err := key(testbed.Request(t, http.MethodPost, "/?"+target, ""))
		require.NoError(t, err, target)
		require.Empty(t, seen[k], "%s and %s make %s", seen[k], target, k)
		seen[k] = target
	}
}

func FuzzJoinedKeysDiffer(f *testing.F) {
	f.Add("a:b", "c", "a", "b:c")
	f.Add("a|b", "c", "a", "b|c")
	f.Add("a%7Cb", "c", "a|b", "c")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		join := func(parts ...string) string {
			funcs := make([]httplock.KeyFunc, len(parts))
			for i, part := range parts {
				funcs[i] = func(*http.Request) (string, error) { return part, nil }
			}
			key, err := httplock.Join(funcs...)(nil)
			require.NoError(t, err)
			return key
		}
		require.Equal(t, a == c && b == d, join(a, b) == join(c, d))
		require.NotEqual(t, join(a, b), join(a, b, c))
	})
}

func TestHash_ShortensOnlyWhatIsTooLong(t *testing.T) {
	hash := func(k string) string {
		key, err := httplock.Hash(func(*http.Request) (string, error) { return k, nil })(nil)
		require.NoError(t, err)
		require.LessOrEqual(t, len(key), core.MaxKeyLen)
		return key
	}
	longest := "order:" + strings.Repeat("x", core.MaxKeyLen-6)
	require.Equal(t, longest, hash(longest))
	hashed := hash(longest + "y")
	require.Equal(t, longest[:64]+"~sha256:", hashed[:72])
	require.Len(t, hashed, 72+64)
	require.NotEqual(t, hashed, hash(longest+"z"), "the end counts")
	require.Equal(t, hashed, hash(longest+"y"))

	euro := hash(strings.Repeat("x", 63) + strings.Repeat("€", 300))
	require.Equal(t, strings.Repeat("x", 63)+"~sha256:", euro[:71], "no character is cut in two")
	require.NoError(t, core.ValidateKey(hash(strings.Repeat("\x80", 600))), "what is no character is no trouble")

	failed := errors.New("failed")
	_, err := httplock.Hash(func(*http.Request) (string, error) { return "", failed })(nil)
	require.ErrorIs(t, err, failed)
}

func TestParam_SeesTheMatch(t *testing.T) {
	mux := http.NewServeMux() // a router in front of the framework's
	mux.HandleFunc("POST /{tenant}/{none}/", func(w http.ResponseWriter, r *http.Request) {
		number, err := strconv.Atoi(r.Header.Get("Number"))
		assert.NoError(t, err)
		item := strconv.Itoa(number)
		match := httplock.Match{Pattern: "/:item/:none", Framework: w, Params: func(yield func(string, string) bool) {
			_ = yield("item", "first") && yield("item", item) && yield("none", "")
		}}
		for name, want := range map[string]string{"item": item, "tenant": "acme", "none": "", "other": ""} {
			for _, key := range []httplock.KeyFunc{httplock.Param("p:", name), httplock.Hash(httplock.Param("p:", name))} {
				got, err := match.Key(key, r)
				if want == "" {
					assert.ErrorContains(t, err, name)
				} else {
					assert.Equal(t, "p:"+want, got)
				}
			}
		}
		_, err = match.Key(httplock.Param("p:", "other"), r)
		assert.ErrorContains(t, err, "the route /:item/:none has no")
		_, err = httplock.Match{Pattern: "/:id"}.Key(httplock.Param("p:", "item"), r)
		assert.ErrorContains(t, err, "the route /:id has no", "what another match had")
		got, err := match.Key(httplock.ParamInt("n:", "item"), r)
		assert.NoError(t, err)
		assert.Equal(t, "n:"+item, got)
		assert.Equal(t, "1", r.PathValue("none"), "the router's own value")
		assert.Equal(t, "POST /{tenant}/{none}/", r.Pattern)
	})
	var all sync.WaitGroup
	for number := range 8 {
		all.Go(func() {
			for range 200 {
				r := testbed.Request(t, http.MethodPost, "/acme/1/", "")
				r.Header.Set("Number", strconv.Itoa(number))
				testbed.Do(mux, r)
			}
		})
	}
	all.Wait()
}

func TestKey_FunctionMayKeepItsRequest(t *testing.T) {
	var kept []*http.Request
	keep := func(r *http.Request) (string, error) {
		kept = append(kept, r)
		return r.PathValue("id"), nil
	}
	for i := range 10 {
		r := testbed.Request(t, http.MethodPost, "/", "")
		match := httplock.Match{Pattern: "/:id", Framework: i, Params: func(yield func(string, string) bool) { yield("id", strconv.Itoa(i)) }}
		for _, key := range []httplock.KeyFunc{keep, httplock.Hash(keep), httplock.Param("", "id")} {
			got, err := match.Key(key, r)
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(i), got)
		}
	}
	require.Len(t, kept, 20)
	for i, r := range kept {
		require.Equal(t, strconv.Itoa(i/2), r.PathValue("id"))
		require.Equal(t, i/2, httplock.FrameworkFrom(r.Context()))
		require.NoError(t, r.Context().Err())
	}
}

func TestKey_APanicOfTheRouterLeavesNothingToTheNext(t *testing.T) {
	for range 100 {
		r := testbed.Request(t, http.MethodPost, "/", "")
		require.Panics(t, func() {
			_, _ = httplock.Match{Pattern: "/:id", Params: func(yield func(string, string) bool) {
				yield("id", testbed.Secret)
				panic("router's")
			}}.Key(httplock.Param("", "id"), r)
		})
		_, err := httplock.Match{Pattern: "/:id", Params: func(func(string, string) bool) {}}.Key(httplock.Param("", "id"), r)
		require.ErrorContains(t, err, "missing or empty")
	}
}

// IdempotencyKey is a part like any other: the rest of the key stays.
func TestJoin_KeepsPartsBesideIdempotencyKey(t *testing.T) {
	t.Parallel()
	shop := httplock.Header("shop:", "X-Shop")
	keyOf := func(key httplock.KeyFunc, shop, once string) string {
		b := testbed.New(t, redistest.Embedded(t)) // the same Idempotency-Key, for another key, would be refused
		var got string
		h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key, remembering(newIdempotency(t, b)))(
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if lease, held := core.LeaseFrom(r.Context()); held {
					got = lease.Key()
				}
			}))
		r := testbed.Request(t, http.MethodPost, "/", "")
		r.Header.Set("X-Shop", shop)
		r.Header.Set("Idempotency-Key", once)
		resp := testbed.Do(h, r)
		require.Equal(t, http.StatusOK, resp.Status, resp.Body)
		return got
	}
	for name, test := range map[string]struct {
		key  httplock.KeyFunc
		want func(own string) string
	}{
		"last":   {httplock.Join(shop, httplock.IdempotencyKey), func(own string) string { return "shop:a%7Cb|" + own }},
		"first":  {httplock.Join(httplock.IdempotencyKey, shop), func(own string) string { return own + "|shop:a%7Cb" }},
		"nested": {httplock.Join(shop, httplock.Join(httplock.IdempotencyKey, shop)), func(own string) string { return "shop:a%7Cb|" + own + "%7Cshop:a%257Cb" }},
		"twice":  {httplock.Join(httplock.IdempotencyKey, httplock.IdempotencyKey), func(own string) string { return own + "|" + own }},
		"hashed": {httplock.Hash(httplock.Join(shop, httplock.IdempotencyKey)), func(own string) string { return "shop:a%7Cb|" + own }},
	} {
		own := keyOf(httplock.IdempotencyKey, "a|b", name)
		require.NotEmpty(t, own)
		require.Equal(t, test.want(own), keyOf(test.key, "a|b", name), name)
	}
	long := keyOf(httplock.Hash(httplock.Join(shop, httplock.IdempotencyKey)), strings.Repeat("x", core.MaxKeyLen), "long")
	require.Contains(t, long, "~sha256:")
}

// A part that fails decides, wherever IdempotencyKey stands.
func TestJoin_PartBesideIdempotencyKeyFails(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	shop := httplock.Header("shop:", "X-Shop")
	for _, key := range []httplock.KeyFunc{httplock.Join(shop, httplock.IdempotencyKey), httplock.Join(httplock.IdempotencyKey, shop)} {
		h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key, remembering(newIdempotency(t, b)))(mustNotRun(t))
		testbed.RequireProblem(t, testbed.Do(h, withKey(t, "/", "k", "")), http.StatusBadRequest, "bad-key", false)
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, "/", ""), http.StatusBadRequest, "bad-key", false)
	}
	key := httplock.Join(httplock.IdempotencyKey, shop)
	h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key)(mustNotRun(t))
	r := withKey(t, "/", "k", "")
	r.Header.Set("X-Shop", "7")
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusInternalServerError, "internal", false)
}

// However a client writes a path, a value has one key, and two values never have the same, whether the router decodes
// path parameters or not. It is long since most of it is tables.
func TestPathParams_AreDecodedOnce(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	var key string
	take := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		lease, _ := core.LeaseFrom(r.Context())
		key = lease.Key()
	})
	id := httplock.PerKey(guard, httplock.Param("", "id"))(take)

	mux := http.NewServeMux()
	for _, pattern := range []string{"POST /o/{id}", "/t/{tenant}/o/{id}", "example.com/h/{id}", "POST /rest/{id...}", "POST /end/{id}/{$}"} {
		mux.Handle(pattern, id)
	}
	mux.Handle("POST /cut/{id}", http.StripPrefix("/cut", id))
	router := chi.NewRouter()
	router.Use(middleware.StripSlashes)
	for _, pattern := range []string{"/o/{id}", "/o/{id}.json", "/t/{tenant}/o/{id}", "/n/{id:[^/]+}"} {
		router.With(httplock.PerKey(guard, httplock.Param("", "id"))).Post(pattern, take)
	}
	router.Route("/sub/{tenant}", func(r chi.Router) {
		r.With(httplock.PerKey(guard, httplock.Param("", "id"))).Post("/o/{id}", take)
	})
	router.With(httplock.PerKey(guard, httplock.Param("", "*"))).Post("/rest/*", take)

	both := map[string]string{
		"/o/42":                        "42",
		"/o/%34%32":                    "42",
		"/o/a%20b":                     "a b",
		"/o/42%25":                     "42%",
		"/o/%34%32%25":                 "42%",
		"/o/42%2525":                   "42%25", // decoded once
		"/o/%34%32%2525":               "42%25",
		"/o/%2534%2532":                "%34%32",
		"/o/a%2Fb%252F":                "a/b%2F",
		"/t/x/o/%34%32%2525":           "42%25",
		"/t/%2534/o/%34%32%2F%25":      "42/%",
		"/t/%34%32/o/%2534%2532":       "%34%32", // the path has %34%32 in both forms
		"/t/%2534%2532/o/%34%32":       "42",
		"/rest/a/%34%2525/":            "a/4%25/",
		"/rest/%2F%25/%2534%2532/%34/": "/%/%34%32/4/",
	}
	own := map[*http.Handler]map[string]string{}
	var inMux, inChi http.Handler = mux, router
	own[&inMux] = map[string]string{
		"/cut/%34%2525": "4%25", "/%6F/%2534": "%34", "/h/%34%2525": "4%25", "/end/%34%2525/": "4%25",
	}
	own[&inChi] = map[string]string{
		"/o/%34%2525.json": "4%25", "/n/%34%2525": "4%25", "/o/%34%2525/": "4%25", "/sub/%2534/o/%34": "4",
		"/rest/a/%34%2525/":            "a/4%25", // without the slash that StripSlashes takes
		"/rest/%2F%25/%2534%2532/%34/": "/%/%34%32/4",
	}
	for handler, targets := range own {
		all := maps.Clone(both)
		maps.Copy(all, targets)
		for target, want := range all {
			key = ""
			require.Equal(t, http.StatusOK, testbed.Call(t, *handler, http.MethodPost, target, "").Status, "%T: %s", *handler, target)
			require.Equal(t, want, key, "%T: %s", *handler, target)
		}
	}
}

// cutsPrefix has h see a path that was changed, so that nothing tells what the router saw.
func cutsPrefix(prefix string, h http.Handler) http.Handler {
	return http.StripPrefix(prefix, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RequestURI = ""
		h.ServeHTTP(w, r)
	}))
}

func TestPathParams_ThatMayHaveBeenDecodedAreRefused(t *testing.T) {
	guard := testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts)
	id := httplock.PerKey(guard, httplock.Param("", "id"))(http.HandlerFunc(ok))
	mux := http.NewServeMux()
	mux.Handle("POST /changed/{id}", cutsPrefix("/changed/4", id))
	require.Equal(t, http.StatusOK, testbed.Call(t, mux, http.MethodPost, "/changed/42", "").Status)
	testbed.RequireProblem(t, testbed.Call(t, mux, http.MethodPost, "/changed/4%2532", ""), http.StatusBadRequest, "bad-key", false)
	// A router that does not tell its pattern.
	unnamed := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.SetPathValue("id", path.Base(r.URL.EscapedPath()))
		id.ServeHTTP(w, r)
	})
	require.Equal(t, http.StatusOK, testbed.Call(t, unnamed, http.MethodPost, "/o/42", "").Status)
	testbed.RequireProblem(t, testbed.Call(t, unnamed, http.MethodPost, "/o/%34%32", ""), http.StatusBadRequest, "bad-key", false)

	// It is refused also where a request without the parameter needs no key.
	optional := httplock.PerKey(guard, func(r *http.Request) (string, error) {
		if r.PathValue("id") == "" {
			return "", httplock.NoKey
		}
		return r.PathValue("id"), nil
	})(mustNotRun(t))
	mux.Handle("POST /optional/{id}", cutsPrefix("/optional/4", optional))
	testbed.RequireProblem(t, testbed.Call(t, mux, http.MethodPost, "/optional/4%2532", ""), http.StatusBadRequest, "bad-key", false)
}

// TestJSONField_MakesOneKeyOfOneValue is long since it is a table.
func TestJSONField_MakesOneKeyOfOneValue(t *testing.T) {
	const bad = "" // 400
	for name, test := range map[string]struct{ path, body, want string }{
		"string":                     {"id", `{"id":"a b"}`, "k:a b"},
		"string, escaped":            {"id", `{"id":"\u0061\/\u00e9"}`, "k:a/é"},
		"string, looks like another": {"id", `{"id":"042"}`, "k:042"},
		"nested":                     {"user.id", ` {"id":1, "user" : {"x":[{"id":2}], "id" : 3 } } `, "k:3"},
		"in an array":                {"user.id", `{"user":[{"id":3}]}`, bad},
		"in a string":                {"user.id", `{"user":"id"}`, bad},
		"in null":                    {"user.id", `{"user":null}`, bad},
		"integer":                    {"id", `{"id":42}`, "k:42"},
		"integer as a fraction":      {"id", `{"id":42.0}`, "k:42"},
		"with an exponent":           {"id", `{"id":4.2e1}`, "k:42"},
		"with a negative exponent":   {"id", `{"id":4200E-2}`, "k:42"},
		"with trailing zeros":        {"id", `{"id":0.4200e+2}`, "k:42"},
		"hundred":                    {"id", `{"id":1e2}`, "k:100"},
		"zero":                       {"id", `{"id":0}`, "k:0"},
		"negative zero":              {"id", `{"id":-0.0e5}`, "k:0"},
		"negative":                   {"id", `{"id":-7}`, "k:-7"},
		"more digits than a float":   {"id", `{"id":9007199254740993}`, "k:9007199254740993"},
		"fraction":                   {"id", `{"id":4.25}`, bad},
		"huge exponent":              {"id", `{"id":1e1000000000}`, bad},
		"exponent past an int":       {"id", `{"id":1e99999999999999999999}`, bad},
		"tiny exponent":              {"id", `{"id":1e-9223372036854775808}`, bad},
		"bool":                       {"id", `{"id":true}`, bad},
		"null":                       {"id", `{"id":null}`, bad},
		"object":                     {"id", `{"id":{}}`, bad},
		"array":                      {"id", `{"id":["a"]}`, bad},
		"empty string":               {"id", `{"id":""}`, bad},
		"missing":                    {"id", `{"ids":1}`, bad},
		"twice":                      {"id", `{"id":1,"id":1}`, bad},
		"twice, escaped":             {"id", `{"id":1,"\u0069d":2}`, bad},
		"twice, in another case":     {"id", `{"id":1,"Id":2}`, bad},
		"twice, folded":              {"kind", `{"kind":1,"` + "\u212aind" + `":2}`, bad}, // the Kelvin sign, which Go's decoder takes for a k
		"only in another case":       {"id", `{"ID":1}`, bad},
		"the object twice":           {"user.id", `{"user":{"id":1},"user":{"id":2}}`, bad},
		"twice elsewhere":            {"id", `{"id":1,"x":{"id":2},"y":{"a":1,"a":2}}`, "k:1"},
		"not an object":              {"id", `[{"id":1}]`, bad},
		"not JSON":                   {"id", `id=1`, bad},
		"cut off":                    {"id", `{"id":1`, bad},
		"something behind":           {"id", `{"id":1}{"id":2}`, bad},
		"nothing":                    {"id", ``, bad},
		"deep":                       {"id", `{"id":1,"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, bad},
	} {
		t.Run(name, func(t *testing.T) {
			r := testbed.Request(t, http.MethodPost, "/", test.body)
			key, err := httplock.JSONField("k:", test.path)(r)
			require.Equal(t, test.want, key)
			rest, readErr := io.ReadAll(r.Body)
			require.NoError(t, readErr)
			require.Equal(t, test.body, string(rest), "the whole body is left")
			require.NoError(t, r.Body.Close())
			if test.want != bad {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			require.NotErrorIs(t, err, core.ErrInvalidOption)
			require.ErrorContains(t, err, "no usable key in the request")
		})
	}
}

func TestJSONField_PathsThatCannotBe(t *testing.T) {
	for path, problem := range map[string]string{
		"": "empty", "a.": "empty name", ".a": "empty name", "a..b": "empty name", strings.Repeat("a.", 16) + "a": "deeper than 16",
	} {
		_, err := httplock.JSONField("k:", path)(testbed.Request(t, http.MethodPost, "/", `{"a":1}`))
		require.ErrorIs(t, err, core.ErrInvalidOption, path)
		require.ErrorContains(t, err, problem)
	}
}

// The cap on what waits is another one than that on what a key function reads.
func TestJSONField_OfALargeBody(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	for size, status := range map[int]int{100: http.StatusOK, httplock.MaxJSONBody: http.StatusOK, httplock.MaxJSONBody + 1: http.StatusRequestEntityTooLarge} {
		h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), httplock.JSONField("k:", "id"), httplock.WithMaxBody(10))(sized(t, size))
		for _, length := range []int64{int64(size), -1} {
			body := `{"id":"free","x":"`
			r := testbed.Request(t, http.MethodPost, "/", body+strings.Repeat("y", size-len(body)-2)+`"}`)
			r.ContentLength = length
			require.Equal(t, status, testbed.Do(h, r).Status, size)
		}
	}
}

func TestKey_BodiesThatCannotBeReadForTheKey(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), httplock.JSONField("k:", "id"))(mustNotRun(t))
	r := testbed.Request(t, http.MethodPost, "/", "")
	r.Body = io.NopCloser(iotest.ErrReader(errors.New(testbed.Secret)))
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusBadRequest, "unreadable-body", false)

	r = testbed.Request(t, http.MethodPost, "/", `{"id":"`+strings.Repeat("x", 1000))
	r.Body = http.MaxBytesReader(nil, r.Body, 100)
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusRequestEntityTooLarge, "body-too-large", false)

	r = testbed.Request(t, http.MethodPost, "/", "")
	r.Body = nil
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusBadRequest, "bad-key", false)

	own := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), func(r *http.Request) (string, error) {
		_, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 3))
		return "", err
	})(mustNotRun(t))
	testbed.RequireProblem(t, testbed.Call(t, own, http.MethodPost, "/", "long"), http.StatusRequestEntityTooLarge, "body-too-large", false)
}

// Whatever a handler decodes with encoding/json is what the key was made of.
func FuzzJSONFieldAgreesWithTheDecoder(f *testing.F) {
	for _, body := range []string{`{"id":42}`, `{"id":"x"}`, `{"id":1,"ID":2}`, `{"a":{"id":1},"id":-0}`, `{"id":1e2}`, `{"id":"\ud800"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		key, err := httplock.JSONField("", "id")(testbed.Request(t, http.MethodPost, "/", string(body)))
		if err != nil {
			return
		}
		var text struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(body, &text) == nil {
			require.Equal(t, text.ID, key)
			return
		}
		var number struct {
			ID json.Number `json:"id"`
		}
		require.NoError(t, json.Unmarshal(body, &number))
		if n, err := number.ID.Int64(); err == nil {
			got, err := json.Number(key).Int64()
			require.NoError(t, err)
			require.Equal(t, n, got)
		}
	})
}
