package httplock_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

func TestWaitingRequestThatExpects100ContinueIsReadAndRuns(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	release := b.hold(t)
	url, client := serve(t, guarded(core.NewGuard(b.locker, patient{}), func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(w, r.Body)
		assert.NoError(t, err)
	}))
	client.Transport.(*http.Transport).ExpectContinueTimeout = time.Hour
	r := toServer(t.Context(), t, url+ordersPath, "hello")
	r.Header.Set("Expect", "100-continue")
	go func() {
		<-b.conflict
		release()
	}()
	resp, err := send(client, r)
	require.NoError(t, err)
	require.Equal(t, "hello", resp.body)
}

func TestBodyThatBreaksOffNeverRuns(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	for name, policy := range map[string]core.ConflictPolicy{"waiting": patient{}, "parking": &parking{}} {
		t.Run(name, func(t *testing.T) {
			h := guarded(core.NewGuard(b.locker, policy), mustNotRun(t))
			r := request(t, http.MethodPost, ordersPath, "")
			r.Body = io.NopCloser(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("xyz"))))
			requireProblem(t, do(h, r), http.StatusBadRequest, "unreadable-body", false)

			r = request(t, http.MethodPost, ordersPath, "xyz")
			r.Body = http.MaxBytesReader(httptest.NewRecorder(), r.Body, 2)
			requireProblem(t, do(h, r), http.StatusRequestEntityTooLarge, "body-too-large", false)
		})
	}
}

func TestServersDeadlineWhileWaitingIsNotSilence(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	h := guarded(core.NewGuard(b.locker, patient{}), mustNotRun(t))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	requireProblem(t, do(h, request(t, http.MethodPost, ordersPath, "").WithContext(ctx)), http.StatusServiceUnavailable, "timeout", true)

	gone, leave := context.WithCancel(t.Context())
	leave()
	w := do(h, request(t, http.MethodPost, ordersPath, "").WithContext(gone))
	require.Equal(t, 499, w.status, "for the access log")
	require.Empty(t, w.body)
}

// readerThat is an empty body that does something when it is read.
type readerThat func()

func (f readerThat) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func (readerThat) Close() error { return nil }
