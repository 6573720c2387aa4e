package adapter_test

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// What a handler's error is answered with is the response, and is kept like any other.
func TestIdempotency_RequestsMadeTwiceHaveTheFirstResponse(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := testbed.New(t, env)
		store, err := idempotency.New(b.Redis, idempotency.WithPrefix(b.Prefix))
		require.NoError(t, err)
		for name, test := range map[string]struct {
			handler func(x exchange) error
			status  int
			kept    bool
			errors  int64 // that reach echo's error handler, of each run
		}{
			"text":     {func(x exchange) error { return x.String(http.StatusCreated, "caf\u00e9") }, http.StatusCreated, true, 0},
			"nothing":  {func(exchange) error { return nil }, http.StatusOK, true, 0},
			"status":   {func(x exchange) error { return x.NoContent(http.StatusNoContent) }, http.StatusNoContent, true, 0},
			"refusal":  {func(exchange) error { return v.failure(http.StatusUnprocessableEntity) }, http.StatusUnprocessableEntity, true, 1},
			"failure":  {func(exchange) error { return v.failure(http.StatusBadGateway) }, http.StatusBadGateway, false, 1},
			"an error": {func(exchange) error { return errors.New("no") }, http.StatusInternalServerError, false, 1},
			"an error after the response": {func(x exchange) error {
				_ = x.String(http.StatusCreated, "made")
				return errors.New("no")
			}, http.StatusCreated, true, 1},
		} {
			var runs, handled atomic.Int64
			h := v.start(service{
				guard: b.Locker.Guard(core.RejectConflicts), key: orderKey, options: []httplock.Option{httplock.WithIdempotency(store), httplock.WithAnonymous()},
				onError: func(error) { handled.Add(1) },
				handler: func(x exchange) error {
					runs.Add(1)
					return test.handler(x)
				},
			})
			post := func() testbed.Answer {
				r := testbed.Request(t, http.MethodPost, orderPath, "")
				r.Header.Set("Idempotency-Key", `"`+name+`"`)
				return testbed.Do(h, r)
			}
			first, second := post(), post()
			require.Equal(t, test.status, first.Status, name)
			require.Equal(t, test.status, second.Status, name)
			require.Equal(t, first.Body, second.Body, name)
			require.Equal(t, test.errors*runs.Load(), handled.Load(), "%s: calls of the error handler", name)
			if test.kept {
				require.EqualValues(t, 1, runs.Load(), name)
				require.Equal(t, "true", second.Header.Get("Idempotent-Replayed"), name)
				require.Equal(t, first.Header["Content-Type"], second.Header["Content-Type"], name)
			} else {
				require.EqualValues(t, 2, runs.Load(), name)
				require.NotContains(t, second.Header, "Idempotent-Replayed", name)
			}
		}
	})
}
