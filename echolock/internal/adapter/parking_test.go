package adapter_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/echolock"
	echolock5 "github.com/perkey-go/perkey/echolock/v5"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestParking_ParkedRequestsAreReplayed(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := testbed.New(t, env)
		queue := testbed.NewQueue(t, b.Redis, "ship", delayqueue.WithPrefix(b.Prefix))
		fail, replays := true, 0
		h := v.start(service{
			at: "use", guard: b.Locker.Guard(delayqueue.Policy(queue)), key: httplock.Join(orderKey, httplock.JSONField("", "n")),
			skip: true, errors: true, // what is parked is no error
			options: []httplock.Option{
				httplock.WithStatusPath("/tickets/"),
				v.principal(func(c seen) (string, error) { return "the sender of " + c.Param("id"), nil }),
				httplock.WithReauthorize(func(r *http.Request, p string) error {
					if p == "the sender of forbidden" {
						return httplock.ErrForbidden
					}
					assert.Equal(t, "the sender of "+testbed.Secret, p)
					return nil
				}),
			},
			handler: func(x exchange) error {
				replays++
				_, replayed := httplock.Replayed(x.Request().Context())
				assert.True(t, replayed)
				lease, held := x.lease()
				if assert.True(t, held) {
					assert.Equal(t, testbed.OrderKey+"|7", lease.Key())
				}
				body, err := io.ReadAll(x.Request().Body)
				assert.NoError(t, err)
				if fail {
					fail = false
					return v.failure(http.StatusServiceUnavailable) // tried again
				}
				return x.String(http.StatusCreated, x.Param("id")[:2]+string(body))
			},
		})
		park := func(order string) (id string) {
			defer b.HoldKey(t, "order:"+order+"|7")()
			parked := testbed.Do(h, testbed.Request(t, http.MethodPost, base+"/orders/"+order, `{"n":7.0}`))
			require.Equal(t, http.StatusAccepted, parked.Status, parked.Body)
			return strings.TrimPrefix(parked.Header.Get("Location"), "/tickets/")
		}
		id, forbidden := park(testbed.Secret), park("forbidden")
		require.Zero(t, replays)

		testbed.Work(t, queue, b.Locker, httplock.Replay(h, httplock.WithReplayReauthorize(anybody)))
		result := func(id string) testbed.Answer {
			status, err := queue.Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, delayqueue.StateDone, status.State, status.Cause)
			require.Equal(t, 1, status.Attempts, "an answer of 503 spends none")
			tickets := httplock.TicketHandler(queue, func(*http.Request, delayqueue.Status) bool { return true })
			return testbed.Call(t, tickets, http.MethodGet, "/tickets/"+id+"/result", "")
		}
		made := result(id)
		require.Equal(t, http.StatusCreated, made.Status)
		require.Equal(t, testbed.Secret[:2]+`{"n":7.0}`, made.Body)
		require.Equal(t, http.StatusForbidden, result(forbidden).Status)
	})
}

func TestWithPrincipal_IsForEcho(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := testbed.New(t, redistest.Embedded(t))
		h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { return "k", nil },
			httplock.WithMaxWaitersPerPrincipal(1), v.principal(func(seen) (string, error) { return "ann", nil }))(http.NotFoundHandler())
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, "/", ""), http.StatusInternalServerError, "internal", false)
	})
	guard := testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts)
	_, err := echolock.New(guard, orderKey, echolock.WithPrincipal(nil))
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = echolock5.New(guard, orderKey, echolock5.WithPrincipal(nil))
	require.ErrorIs(t, err, core.ErrInvalidOption)
}

// anybody leaves it to the guards who may have a request run.
func anybody(*http.Request, string) error { return nil }

// Echo's own middleware that reads bodies, in front of a guard: what is parked is run with what was sent.
func TestPerKey_BodiesThatEchoHasReadAreParkedWhole(t *testing.T) {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err := io.WriteString(zip, "csrf=t&account=7&amount=5")
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	for _, test := range []struct{ front, body, encoding string }{
		{"CSRF", "csrf=t&account=7&amount=5", ""},
		{"Decompress", packed.String(), "gzip"},
	} {
		t.Run(test.front, func(t *testing.T) {
			onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
				b := testbed.New(t, env)
				queue := testbed.NewQueue(t, b.Redis, "ship", delayqueue.WithPrefix(b.Prefix))
				ran := make(chan string, 10)
				h := v.start(service{
					front: test.front, guard: b.Locker.Guard(delayqueue.Policy(queue)), key: orderKey,
					options: []httplock.Option{httplock.WithAnonymous()},
					handler: func(x exchange) error {
						ran <- x.FormValue("account") + ", " + x.FormValue("amount")
						return x.NoContent(http.StatusCreated)
					},
				})
				url, client := testbed.Serve(t, h)
				send := func() int {
					r := testbed.ToServer(t.Context(), t, url+orderPath, test.body)
					r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
					r.Header.Set("Cookie", "_csrf=t")
					if test.encoding != "" {
						r.Header.Set("Content-Encoding", test.encoding)
					}
					resp, err := testbed.Send(client, r)
					require.NoError(t, err)
					return resp.Status
				}
				require.Equal(t, http.StatusCreated, send())
				require.Equal(t, "7, 5", <-ran)
				release := b.Hold(t)
				require.Equal(t, http.StatusAccepted, send())
				testbed.Work(t, queue, b.Locker, httplock.Replay(h), delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
				release()
				redistest.Eventually(t, func() bool { return len(ran) > 0 }, "the replay runs")
				require.Equal(t, "7, 5", <-ran)
			})
		})
	}
}

// What the function leaves in the place of the body of c.Request() is the handler's.
func TestWithPrincipal_MayPutTheBodyBack(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := testbed.New(t, redistest.Embedded(t))
		h := v.start(service{
			guard: b.Locker.Guard(core.RejectConflicts), key: orderKey,
			options: []httplock.Option{v.principal(func(c seen) (string, error) {
				content, err := io.ReadAll(c.Request().Body)
				c.Request().Body = io.NopCloser(bytes.NewReader(content))
				return "ann", err
			})},
			handler: func(x exchange) error {
				content, err := io.ReadAll(x.Request().Body)
				assert.NoError(t, err)
				assert.Equal(t, 2<<20, len(content)) //nolint:testifylint // Len prints it
				return x.NoContent(http.StatusOK)
			},
		})
		require.Equal(t, http.StatusOK, testbed.Call(t, h, http.MethodPost, orderPath, strings.Repeat("x", 2<<20)).Status)
	})
}

// Echo's own cap on a body without a length: what is too long is 413, and what is empty is not gone.
func TestPerKey_BodyLimitInFront(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := testbed.New(t, redistest.Embedded(t))
		b.Hold(t)
		for _, test := range []struct {
			key    httplock.KeyFunc
			body   string
			status int
		}{
			{orderKey, "more than ten", http.StatusRequestEntityTooLarge},
			{httplock.JSONField("order:", "id"), `{"id": "free"}`, http.StatusRequestEntityTooLarge},
			{func(r *http.Request) (string, error) {
				content, err := io.ReadAll(r.Body)
				return string(content), err
			}, "more than ten", http.StatusRequestEntityTooLarge},
			{func(*http.Request) (string, error) { return "free", nil }, "more than ten", http.StatusRequestEntityTooLarge},
			{orderKey, "ten", http.StatusAccepted},
			{orderKey, "", http.StatusAccepted},
		} {
			url, client := testbed.Serve(t, v.start(service{
				front: "BodyLimit", guard: b.Locker.Guard(&testbed.Parking{}), key: test.key,
				options: []httplock.Option{httplock.WithAnonymous()},
				handler: func(x exchange) error {
					_, err := io.ReadAll(x.Request().Body)
					return err
				},
			}))
			r := testbed.ToServer(t.Context(), t, url+orderPath, test.body)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(test.body)), -1
			resp, err := testbed.Send(client, r)
			require.NoError(t, err)
			require.Equal(t, test.status, resp.Status, "%q: %s", test.body, resp.Body)
		}
	})
}
