package httplock_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// A request that its sender's lease does not keep from the key is served; one that it does is told so, a shared one too.
func TestTransport_RefusesOnlyWhatWouldWait(t *testing.T) {
	for name, test := range map[string]struct {
		guard  []core.AcquireOption
		method string // of the request that the handler sends
		want   int
	}{
		"a shared one under an exclusive one": {nil, http.MethodGet, http.StatusLoopDetected},
		"a shared one under a shared one":     {[]core.AcquireOption{core.Shared()}, http.MethodGet, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				b := testbed.New(t, env)
				var url string
				var client http.Client
				key := func(*http.Request) (string, error) { return "k", nil }
				lock := httplock.PerKey(b.Locker.Guard(core.RejectConflicts, test.guard...), key, httplock.WithSharedSafeMethods())
				url, base := testbed.Serve(t, lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/outer" {
						return
					}
					inner, err := http.NewRequestWithContext(r.Context(), test.method, url+"/inner", nil)
					assert.NoError(t, err)
					answer, err := testbed.Send(&client, inner)
					assert.NoError(t, err)
					w.WriteHeader(answer.Status)
				})))
				client.Transport = &httplock.Transport{Base: base.Transport}
				answer, err := testbed.Send(base, testbed.ToServer(t.Context(), t, url+"/outer", ""))
				require.NoError(t, err)
				require.Equal(t, test.want, answer.Status)
			})
		})
	}
}

// A key that is shared in front cannot be had exclusively: two of them would wait for one another. The log says so.
func TestShared_InFrontOfExclusiveIsMisconfigured(t *testing.T) {
	b, said := testbed.New(t, redistest.Embedded(t)), &testbed.Log{}
	inner := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, httplock.WithLogger(said.Logger()))(mustNotRun(t))
	h := guarded(b.Locker.Guard(core.RejectConflicts, core.Shared()), inner.ServeHTTP)
	testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, ""), http.StatusInternalServerError, "misconfigured", false)
	require.Contains(t, said.String(), "misconfigured")
	require.Contains(t, said.String(), "take it exclusively in front")
}
