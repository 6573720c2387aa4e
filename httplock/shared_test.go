package httplock_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
)

func TestSafeMethodsShareTheKeyAndExcludeTheOthers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		guard := core.NewGuard(b.locker, nil)
		share := httplock.SharedForSafeMethods()
		methods := []string{http.MethodGet, http.MethodHead, http.MethodOptions}

		release := b.hold(t)
		for _, method := range methods {
			resp := call(t, guarded(guard, mustNotRun(t), share), method, ordersPath, "")
			require.Equal(t, http.StatusConflict, resp.status, method)
		}
		release()

		reader, err := b.rival.TryAcquire(t.Context(), "order:"+secret, core.Shared())
		require.NoError(t, err)
		for _, method := range methods {
			resp := call(t, guarded(guard, ok, share), method, ordersPath, "")
			require.Equal(t, http.StatusOK, resp.status, method)
		}
		resp := call(t, guarded(guard, mustNotRun(t), share), http.MethodPost, ordersPath, "")
		requireProblem(t, resp, http.StatusConflict, "conflict", true)
		require.NoError(t, reader.Release(t.Context()))

		// What excludes the others inside is what the outside sees.
		h := guarded(guard, func(w http.ResponseWriter, r *http.Request) {
			_, err := b.rival.TryAcquire(r.Context(), "order:"+secret)
			if err == nil {
				t.Error("a writer among readers")
			}
			ok(w, r)
		}, share)
		require.Equal(t, http.StatusOK, call(t, h, http.MethodGet, ordersPath, "").status)
		b.requireFree(t)
	})
}

func TestSafeMethodsAreEitherLockedOrShared(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	guard := core.NewGuard(b.locker, nil)
	_, err := httplock.New(guard, httplock.LockSafeMethods(), httplock.SharedForSafeMethods())
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = httplock.New(guard, httplock.SharedForSafeMethods(), httplock.LockSafeMethods())
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = httplock.New(guard, httplock.LockSafeMethods(), httplock.LockSafeMethods())
	require.NoError(t, err)
}
