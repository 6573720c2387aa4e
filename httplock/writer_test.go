package httplock_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

func TestPushSaysWhatTheServerCannot(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	url, client := serve(t, guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, _ *http.Request) {
		pusher, able := w.(http.Pusher)
		if assert.True(t, able) {
			assert.ErrorIs(t, pusher.Push("/x", nil), http.ErrNotSupported)
		}
	}))
	resp, err := send(client, toServer(t.Context(), t, url+ordersPath, ""))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.status)
}

func TestCallerSeesTheRouteName(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	h := guarded(core.NewGuard(b.locker, nil), mustNotRun(t))
	call(t, h, http.MethodPost, ordersPath, "")
	require.Equal(t, "POST /orders/{id}", (<-b.conflict).Name)

	mux := http.NewServeMux()
	mux.Handle("PUT /carts/{id}", httplock.PerKey(core.NewGuard(b.locker, nil), orderKey)(mustNotRun(t)))
	call(t, mux, http.MethodPut, "/carts/"+secret, "")
	require.Equal(t, "PUT /carts/{id}", (<-b.conflict).Name)
}
