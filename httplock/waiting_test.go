package httplock_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestWaiting_RequestThatExpects100ContinueIsReadAndRuns(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	release := b.Hold(t)
	url, client := testbed.Serve(t, guarded(b.Locker.Guard(testbed.Patient{}), func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(w, r.Body)
		assert.NoError(t, err)
	}))
	client.Transport.(*http.Transport).ExpectContinueTimeout = time.Hour
	r := testbed.ToServer(t.Context(), t, url+testbed.OrderPath, "hello")
	r.Header.Set("Expect", "100-continue")
	go func() {
		<-b.Conflicts
		release()
	}()
	resp, err := testbed.Send(client, r)
	require.NoError(t, err)
	require.Equal(t, "hello", resp.Body)
}

func TestWaiting_ServersDeadlineWhileWaitingIsNotSilence(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	h := guarded(b.Locker.Guard(testbed.Patient{}), mustNotRun(t))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testbed.RequireProblem(t, testbed.Do(h, testbed.Request(t, http.MethodPost, testbed.OrderPath, "").WithContext(ctx)), http.StatusServiceUnavailable, "timeout", true)

	gone, leave := context.WithCancel(t.Context())
	leave()
	w := testbed.Do(h, testbed.Request(t, http.MethodPost, testbed.OrderPath, "").WithContext(gone))
	require.Equal(t, 499, w.Status, "for the access log")
	require.Empty(t, w.Body)
}

// readerThat is an empty body that does something when it is read.
type readerThat func()

func (f readerThat) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func (readerThat) Close() error { return nil }
