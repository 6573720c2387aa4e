package httplock_test

import (
	"maps"
	"net/http"
	"path"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
