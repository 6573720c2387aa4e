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

func TestWaitingRequestRunsWhenTheKeyIsReleased(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		for name, test := range map[string]struct{ size, maxBody int }{
			"no body":            {0, 1 << 20},
			"body in memory":     {100_000, 1 << 20},
			"body at the cap":    {1000, 1000},
			"body over the cap":  {100_000, 1000},
			"body one byte over": {1001, 1000},
		} {
			for _, chunked := range []bool{false, true} {
				release := b.hold(t)
				body := strings.Repeat("0123456789", test.size/10+1)[:test.size]
				h := guarded(core.NewGuard(b.locker, retry.Policy{MaxWait: time.Minute}), func(w http.ResponseWriter, r *http.Request) {
					got, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					assert.Equal(t, body, string(got), name)
					assert.NoError(t, r.Body.Close())
					ok(w, r)
				}, httplock.WithMaxBody(int64(test.maxBody)))
				url, client := serve(t, h)
				r := toServer(t.Context(), t, url+ordersPath, body)
				if chunked {
					r.ContentLength = -1
				}
				for len(b.conflict) > 0 {
					<-b.conflict
				}
				go func() {
					<-b.conflict
					release()
				}()
				resp, err := send(client, r)
				require.NoError(t, err)
				require.Equal(t, "ok", resp.body, name)
				require.Equal(t, http.StatusOK, resp.status)
			}
		}
	})
}

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

func TestClientGoneWhileWaitingNeverRuns(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, body := range map[string]string{"empty": "", "unread": strings.Repeat("x", 500_000)} {
			t.Run(name, func(t *testing.T) {
				b := setup(t, env)
				release := b.hold(t)
				left := make(chan struct{})
				guardedHandler := guarded(core.NewGuard(b.locker, patient{}), mustNotRun(t))
				url, client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer close(left)
					guardedHandler.ServeHTTP(w, r)
				}))
				ctx, leave := context.WithCancel(t.Context())
				go func() {
					<-b.conflict
					leave()
				}()
				_, err := send(client, toServer(ctx, t, url+ordersPath, body))
				require.ErrorIs(t, err, context.Canceled)
				<-left // while the key is still held
				release()
				b.requireFree(t)
			})
		}
	})
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

func TestClientGoneMidHandlerKeepsTheKeyUntilItReturns(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		var held atomic.Bool
		inner := guarded(core.NewGuard(b.locker, nil), func(_ http.ResponseWriter, r *http.Request) {
			leave()
			<-r.Context().Done()
			_, err := b.rival.TryAcquire(context.Background(), "order:"+secret)
			held.Store(assert.ErrorIs(t, err, core.ErrConflict))
		})
		url, client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(left)
			inner.ServeHTTP(w, r)
		}))
		_, err := send(client, toServer(ctx, t, url+ordersPath, ""))
		require.ErrorIs(t, err, context.Canceled)
		<-left
		require.True(t, held.Load())
		b.requireFree(t)
	})
}

// readerThat is an empty body that does something when it is read.
type readerThat func()

func (f readerThat) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func (readerThat) Close() error { return nil }
