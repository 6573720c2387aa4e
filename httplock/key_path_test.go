package httplock_test

import (
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// However a client writes a path, a value has one key, and two values never have the same.
func TestPathParametersAreDecodedOnce(t *testing.T) {
	var key string
	var err error
	take := func(_ http.ResponseWriter, r *http.Request) { key, err = httplock.Param("", "id")(r) }
	mux := http.NewServeMux()
	mux.HandleFunc("POST /o/{id}", take)
	mux.HandleFunc("POST /t/{tenant}/o/{id}", take)
	mux.HandleFunc("POST /rest/{id...}", take)
	mux.Handle("POST /cut/{id}", http.StripPrefix("/cut", http.HandlerFunc(take)))
	router := chi.NewRouter()
	router.Post("/o/{id}", take)
	router.Post("/o/{id}.json", take)
	router.Post("/t/{tenant}/o/{id}", take)
	for name, handler := range map[string]http.Handler{"net/http": mux, "chi": router} {
		for target, want := range map[string]string{
			"/o/42":                   "42",
			"/o/%34%32":               "42",
			"/o/42%25":                "42%",
			"/o/%34%32%25":            "42%",
			"/o/42%2525":              "42%25", // decoded once
			"/o/%34%32%2525":          "42%25",
			"/o/%2534%2532":           "%34%32",
			"/o/a%2Fb%252F":           "a/b%2F",
			"/t/x/o/%34%32%2525":      "42%25",
			"/t/%2534/o/%34%32%2F%25": "42/%",
		} {
			key, err = "", nil
			require.Equal(t, http.StatusOK, testbed.Call(t, handler, http.MethodPost, target, "").Status, target)
			require.NoError(t, err)
			require.Equal(t, want, key, "%s under %s", target, name)
		}
	}
	// A value that is somewhere in the path in both forms.
	testbed.Call(t, mux, http.MethodPost, "/t/%34%32/o/%2534%2532", "")
	require.ErrorContains(t, err, "can be read in two ways")
	require.Empty(t, key)
	testbed.Call(t, router, http.MethodPost, "/t/%2534%2532/o/%34%32", "")
	require.ErrorContains(t, err, "can be read in two ways")
	require.Empty(t, key)

	for target, want := range map[string]string{"/rest/a/%34%2525/": "a/4%25/", "/cut/%34%2525": "4%25"} {
		require.Equal(t, http.StatusOK, testbed.Call(t, mux, http.MethodPost, target, "").Status)
		require.NoError(t, err)
		require.Equal(t, want, key, target)
	}
	testbed.Call(t, router, http.MethodPost, "/o/%34%2525.json", "")
	require.NoError(t, err)
	require.Equal(t, "4%25", key, "a part of a segment")
}
