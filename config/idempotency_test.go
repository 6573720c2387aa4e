package config_test

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// records are the TTLs of what is remembered, by the names in Redis.
func records(t *testing.T, env *redistest.Env, rt *config.Runtime) map[string]time.Duration {
	t.Helper()
	names, err := rt.Redis().Keys(t.Context(), env.Prefix+":idem*").Result()
	require.NoError(t, err)
	ttls := map[string]time.Duration{}
	for _, name := range names {
		ttls[name], err = rt.Redis().PTTL(t.Context(), name).Result()
		require.NoError(t, err)
	}
	return ttls
}

// TestIdempotency_AnswersASecondRequestAsItsRouteSays is long since it asks every route of one file.
func TestIdempotency_AnswersASecondRequestAsItsRouteSays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rt := build(t, env, `
guards:
  pay: {key: "order:{param.id}", anonymous: true, idempotency: {required: true, ttl: 1h, keep_body: 4B, keep_headers: [X-Mine]}}
  plain: {key: "order:{param.id}", anonymous: true, idempotency: {}}
  refund: {key: "{idempotency_key}", principal: users, idempotency: {}}
  ship: {key: "order:{param.id}", principal: users, idempotency: {keep_body: 0}}
  off: {key: "order:{param.id}"}
routes:
  POST /pay/:id: pay
  POST /plain/:id: plain
  POST /refunds: refund
  POST /ship/:id: ship
  POST /off/:id: off
`, config.WithPrincipal("users", func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil },
			func(*http.Request, string) error { return nil }))
		var runs atomic.Int64
		mux := http.NewServeMux()
		for _, path := range []string{"/pay/{id}", "/plain/{id}", "/refunds", "/ship/{id}", "/off/{id}"} {
			mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				w.Header().Set("X-Mine", "1")
				w.Header().Set("X-Other", "2")
				body, _ := io.ReadAll(r.Body)
				_, _ = w.Write(body)
			})
		}
		h := httplock.FromConfig(rt)(mux)
		post := func(path, body string, headers ...string) *httptest.ResponseRecorder {
			r := request("POST", path, headers...)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		requireRuns := func(want int64, what string) {
			t.Helper()
			require.Equal(t, want, runs.Swap(0), what)
		}

		assert.Equal(t, http.StatusBadRequest, post("/pay/7", "x").Code, "required")
		assert.Equal(t, http.StatusOK, post("/pay/7", "kept", "Idempotency-Key: a").Code)
		again := post("/pay/7", "kept", "Idempotency-Key: a")
		assert.Equal(t, "kept", again.Body.String())
		assert.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
		assert.Equal(t, "1", again.Header().Get("X-Mine"))
		assert.Empty(t, again.Header().Get("X-Other"))
		assert.Equal(t, http.StatusUnprocessableEntity, post("/pay/7", "other", "Idempotency-Key: a").Code)
		requireRuns(1, "the rest was answered from the store")
		ttls := records(t, env, rt)
		require.Len(t, ttls, 1, "under the file's prefix")
		for name, ttl := range ttls {
			assert.InDelta(t, time.Hour, ttl, float64(time.Minute), name)
		}
		assert.Equal(t, "large", post("/pay/7", "large", "Idempotency-Key: b").Body.String())
		again = post("/pay/7", "large", "Idempotency-Key: b")
		assert.Equal(t, http.StatusConflict, again.Code)
		assert.Contains(t, again.Body.String(), "response-not-kept")
		requireRuns(1, "it is not kept, and not run again")

		post("/plain/7", "x")
		post("/plain/7", "x", "Idempotency-Key: c")
		assert.Equal(t, "x", post("/plain/7", "x", "Idempotency-Key: c").Body.String())
		requireRuns(2, "the header may be missing")
		assert.InDelta(t, 24*time.Hour, slices.Max(slices.Collect(maps.Values(records(t, env, rt)))), float64(time.Minute), "the default")

		// Nobody else has the key's lock, and another's key is another one.
		for _, path := range []string{"/refunds", "/ship/7"} {
			for _, who := range []string{"Authorization: ann", "Authorization: bob", "Authorization: ann"} {
				post(path, "", "Idempotency-Key: d", who)
			}
			requireRuns(2, path)
		}
		assert.Equal(t, http.StatusBadRequest, post("/refunds", "x").Code, "there is no other key")
		for range 2 {
			post("/off/7", "x", "Idempotency-Key: e")
		}
		requireRuns(2, "the header is the handler's")
	})
}
