package httplock_test

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// A process with the wrong key runs nothing twice, parks nothing twice, and says why in its log.
func TestSealed_ResponsesNeedTheirKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		var runs atomic.Int64
		server := func(policy core.ConflictPolicy, id string, key byte) (http.Handler, *testbed.Log) {
			said := &testbed.Log{}
			keys := idempotency.Keyring{Current: id, Keys: map[string][]byte{id: bytes.Repeat([]byte{key, 0xff}, 16)}}
			h := guarded(d.Locker.Guard(policy), func(w http.ResponseWriter, _ *http.Request) {
				runs.Add(1)
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, "receipt "+testbed.Secret)
			}, httplock.WithIdempotency(newIdempotency(t, d.Fixture, idempotency.WithEncryption(keys))), httplock.WithLogger(said.Logger()))
			return h, said
		}
		right, _ := server(nil, "k1", 'a')
		first := testbed.Do(right, withKey(t, testbed.OrderPath, "k", "{}"))
		requireReplayed(t, first, testbed.Do(right, withKey(t, testbed.OrderPath, "k", "{}")))
		for _, name := range redistest.Keys(t, d.Redis, d.Prefix+":idem{}:") {
			stored, err := d.Redis.HGet(t.Context(), name, "outcome").Result()
			require.NoError(t, err)
			require.NotContains(t, stored, testbed.Secret)
		}
		for why, key := range map[string]struct {
			id   string
			with byte
		}{`add key \"k1\" to the Keyring`: {"k2", 'b'}, `sealed under another key \"k1\"`: {"k1", 'b'}} {
			for _, policy := range []core.ConflictPolicy{nil, delayqueue.Policy(d.queue)} {
				wrong, said := server(policy, key.id, key.with)
				for _, release := range []func(){d.Hold(t), func() {}} {
					resp := testbed.Do(wrong, withKey(t, testbed.OrderPath, "k", "{}"))
					testbed.RequireProblem(t, resp, http.StatusInternalServerError, "misconfigured", false)
					release()
					d.RequireFree(t)
				}
				require.Contains(t, said.String(), why)
				require.NotContains(t, said.String(), "receipt")
			}
		}
		require.EqualValues(t, 1, runs.Load())
		d.requireNothingParked(t)
	})
}
