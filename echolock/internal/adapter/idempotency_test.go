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
	"github.com/perkey-go/perkey/internal/redistest"
)

// What a handler's error is answered with is the response, and is kept like any other.
func TestRequestsMadeTwiceHaveTheFirstResponse(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := setup(t, env)
		store, err := idempotency.New(b.rdb, idempotency.WithPrefix(b.prefix))
		require.NoError(t, err)
		for name, test := range map[string]struct {
			handler func(x exchange) error
			status  int
			kept    bool
		}{
			"text":     {func(x exchange) error { return x.String(http.StatusCreated, "caf\u00e9") }, http.StatusCreated, true},
			"nothing":  {func(exchange) error { return nil }, http.StatusOK, true},
			"status":   {func(x exchange) error { return x.NoContent(http.StatusNoContent) }, http.StatusNoContent, true},
			"refusal":  {func(exchange) error { return v.failure(http.StatusUnprocessableEntity) }, http.StatusUnprocessableEntity, true},
			"failure":  {func(exchange) error { return v.failure(http.StatusBadGateway) }, http.StatusBadGateway, false},
			"an error": {func(exchange) error { return errors.New("no") }, http.StatusInternalServerError, false},
			"an error after the response": {func(x exchange) error {
				_ = x.String(http.StatusCreated, "made")
				return errors.New("no")
			}, http.StatusCreated, true},
		} {
			var runs atomic.Int64
			h := v.start(service{
				guard: core.NewGuard(b.locker, nil), key: orderKey, options: []httplock.Option{httplock.WithIdempotency(store)},
				handler: func(x exchange) error {
					runs.Add(1)
					return test.handler(x)
				},
			})
			post := func() answer {
				r := request(t, http.MethodPost, orderPath, "")
				r.Header.Set("Idempotency-Key", `"`+name+`"`)
				return do(h, r)
			}
			first, second := post(), post()
			require.Equal(t, test.status, first.status, name)
			require.Equal(t, test.status, second.status, name)
			require.Equal(t, first.body, second.body, name)
			if test.kept {
				require.EqualValues(t, 1, runs.Load(), name)
				require.Equal(t, "true", second.header.Get("Idempotent-Replayed"), name)
				require.Equal(t, first.header["Content-Type"], second.header["Content-Type"], name)
			} else {
				require.EqualValues(t, 2, runs.Load(), name)
				require.NotContains(t, second.header, "Idempotent-Replayed", name)
			}
		}
	})
}
