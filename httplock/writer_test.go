package httplock_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestPush_SaysWhatTheServerCannot(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	url, client := testbed.Serve(t, guarded(b.Locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, _ *http.Request) {
		pusher, able := w.(http.Pusher)
		if assert.True(t, able) {
			assert.ErrorIs(t, pusher.Push("/x", nil), http.ErrNotSupported)
		}
	}))
	resp, err := testbed.Send(client, testbed.ToServer(t.Context(), t, url+testbed.OrderPath, ""))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.Status)
}
