package conformance

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// slowHeader marks requests whose client sends slowly.
const slowHeader = "X-Slow"

// shortBodyTime is a limit that tests wait for.
const shortBodyTime = 200 * time.Millisecond

// overBoth runs f over HTTP/1.1 and over HTTP/2. An app is made for each.
func (t *fixture) overBoth(app func() App, f func(s *site)) {
	t.Helper()
	for _, http2 := range []bool{false, true} {
		s := t.serveOver(http2, app())
		f(s)
	}
}

// slowClient is a client that sends a byte now and then, until it is told to send the rest.
type slowClient struct {
	answer <-chan testbed.Answer // without a status if the connection was closed before it was read
	finish func()
}

// slowly posts body to the order: the first bytes at once, and then one each 20 ms, or none if it stalls.
func (t *fixture) slowly(s *site, body string, first int, stalls bool) slowClient {
	t.Helper()
	reader, writer := io.Pipe()
	finish := make(chan struct{})
	r := t.request(s, http.MethodPost, testbed.OrderPath, "")
	r.Body, r.ContentLength = reader, int64(len(body))
	r.Header.Set(slowHeader, "yes")
	go func() {
		defer func() { _ = writer.Close() }()
		_, err := io.WriteString(writer, body[:first])
		rest := body[first:]
		for err == nil && len(rest) > 1 {
			pace := time.After(20 * time.Millisecond)
			if stalls {
				pace = nil
			}
			select {
			case <-pace:
				_, err = io.WriteString(writer, rest[:1])
				rest = rest[1:]
				continue
			case <-finish:
			case <-t.Context().Done():
			}
			break
		}
		if err == nil {
			_, _ = io.WriteString(writer, rest)
		}
	}()
	return slowClient{t.atOnce(s, 1, func(int) *http.Request { return r }), func() { close(finish) }}
}

// arrivals tells of slow requests in front of the guard.
func arrivals() (arrived chan struct{}, front Middleware) {
	arrived = make(chan struct{}, 1)
	return arrived, func(c Context) error {
		if c.Request().Header.Get(slowHeader) != "" {
			arrived <- struct{}{}
		}
		return c.Next()
	}
}

// requireServed requires that a body that is sent at once is taken. On a machine that is busy
// for as long as the limit it can be late all the same: then another one is sent.
func (t *fixture) requireServed(s *site) {
	t.Helper()
	var resp testbed.Answer
	t.eventually(func() bool {
		resp = t.post(s, "x")
		return resp.Status != http.StatusRequestTimeout
	}, "a body in time")
	t.requireOK(resp)
}

// policies are those that routes have.
func policies() map[string]core.ConflictPolicy {
	return map[string]core.ConflictPolicy{
		"reject": nil, "retry": retry.Policy{MaxWait: time.Minute}, "park": &testbed.Parking{},
		"retry, then park": retry.Policy{MaxWait: 30 * time.Second, Then: &testbed.Parking{}},
	}
}

// slowBody: nobody waits for a client that has not sent its body, in front of it or behind.
func slowBody(t *fixture) {
	const others = 6
	b := t.setUp()
	body := text(10_000)
	for name, policy := range policies() {
		for _, held := range []bool{false, true} {
			var slowRuns atomic.Int64
			var finished atomic.Bool
			arrived, front := arrivals()
			t.overBoth(func() App {
				return orders(func(w http.ResponseWriter, r *http.Request) error {
					if r.Header.Get(slowHeader) != "" {
						slowRuns.Add(1)
						assert.True(t, finished.Load(), "%s: the slow request has the key before its body", name)
					}
					_, err := io.Copy(io.Discard, r.Body)
					assert.NoError(t, err)
					return ok(w, r)
				}, front, lock(b, policy))
			}, func(s *site) {
				slowRuns.Store(0)
				finished.Store(false)
				release := func() {}
				if held {
					release = b.Hold(t)
				}
				waits := name != "reject" && name != "park" // the others refuse or park one another
				post := func(n int) (served func()) {
					if !waits {
						for range n {
							t.requireOK(t.post(s, "x"))
						}
						return func() {}
					}
					answers := t.atOnce(s, n, t.posts(s, "x"))
					return func() {
						for range n {
							t.requireOK(await(t, answers, name+": the others do not wait for the slow request"))
						}
					}
				}
				inFront := 0
				if !held || waits {
					inFront = others / 2
				}
				first := post(inFront)
				slow := t.slowly(s, body, 10, false)
				await(t, arrived, "the slow request")
				time.Sleep(20 * time.Millisecond) // so that it can ask for the key, if it does
				if !waits {
					release()
				}
				rest := post(others - inFront)
				release()
				first()
				rest()
				require.Zero(t, slowRuns.Load(), name)
				finished.Store(true)
				slow.finish()
				t.requireOK(await(t, slow.answer, name+": the slow request's response"))
				require.EqualValues(t, 1, slowRuns.Load(), name)
				b.RequireFree(t)
			})
		}
	}
}

// lateBody: what does not come in time is refused before it has the key.
func lateBody(t *fixture) {
	b := t.setUp()
	var sites []*site
	var checks sync.WaitGroup // they only wait
	for _, policy := range policies() {
		t.overBoth(func() App {
			return orders(func(w http.ResponseWriter, r *http.Request) error {
				assert.Empty(t, r.Header.Get(slowHeader), "the handler ran without its body")
				return ok(w, r)
			}, lock(b, policy, httplock.WithBodyTimeout(shortBodyTime)))
		}, func(s *site) {
			sites = append(sites, s)
			for _, stalls := range []bool{false, true} {
				checks.Go(func() {
					var resp testbed.Answer
					t.eventually(func() bool {
						resp = await(t, t.slowly(s, text(1000), 10, stalls).answer, "the slow request is refused")
						return resp.Status != 0
					}, "a response that is read")
					testbed.RequireProblem(t, resp, http.StatusRequestTimeout, "body-timeout", false)
				})
			}
		})
	}
	checks.Wait()
	for _, s := range sites {
		t.requireServed(s)
	}
	b.RequireFree(t)
}

// lateRest: a handler that reads more than was read before its key does not have it for as long as the client likes.
func lateRest(t *fixture) {
	b := t.setUp()
	for _, stalls := range []bool{false, true} {
		for _, reads := range []bool{false, true} {
			t.overBoth(func() App {
				return orders(func(w http.ResponseWriter, r *http.Request) error {
					if r.Header.Get(slowHeader) == "" {
						return ok(w, r)
					}
					b.AssertHeld(t)
					if reads {
						got, err := io.ReadAll(r.Body)
						assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
						assert.True(t, strings.HasPrefix(text(10_000), string(got)), "what came is as it was sent")
						assert.GreaterOrEqual(t, len(got), 100)
					}
					w.WriteHeader(http.StatusUnprocessableEntity)
					_, _ = io.WriteString(w, text(10_000)) // more than is held back
					return nil
				}, lock(b, nil, httplock.WithReadAhead(100), httplock.WithBodyTimeout(shortBodyTime)))
			}, func(s *site) {
				status := 0
				t.eventually(func() bool { // else its beginning was late already
					slow := t.slowly(s, text(10_000), 110, stalls)
					defer slow.finish()
					status = await(t, slow.answer, "the handler gives up").Status
					b.RequireFree(t)
					return status != 0 && status != http.StatusRequestTimeout
				}, "the beginning of a body in time")
				require.Equal(t, http.StatusUnprocessableEntity, status)
				t.requireServed(s)
			})
		}
	}
}

// bodyInTime: a limit that was kept leaves no trace, neither in the handler's ctx nor on the connection.
func bodyInTime(t *fixture) {
	const limit = 3 * shortBodyTime // a busy machine sends in less
	b := t.setUp()
	var checks sync.WaitGroup // they only wait
	for _, http2 := range []bool{false, true} {
		for _, size := range []int{100, 100_000} {
			key := func(*http.Request) (string, error) { return fmt.Sprint(http2, size), nil }
			s := t.serveOver(http2, orders(func(w http.ResponseWriter, r *http.Request) error {
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, text(size), string(got))
				time.Sleep(2 * limit)
				assert.NoError(t, r.Context().Err(), "the limit is the body's, not the handler's")
				return ok(w, r)
			}, Lock{b.Locker.Guard(core.RejectConflicts), key, []httplock.Option{httplock.WithBodyTimeout(limit)}}))
			checks.Go(func() {
				for i := range 2 {
					reused := false
					trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
					r := t.request(s, http.MethodPost, testbed.OrderPath, text(size))
					t.requireOK(t.do(s, r.WithContext(httptrace.WithClientTrace(r.Context(), trace))))
					require.Equal(t, i > 0, reused, "the connection is good for the next request")
					time.Sleep(limit)
				}
			})
		}
	}
	checks.Wait()
}

// streamedBody: the handler of a route that streams reads while the client sends.
func streamedBody(t *fixture) {
	b := t.setUp()
	begun := make(chan struct{}, 1)
	t.overBoth(func() App {
		return orders(func(w http.ResponseWriter, r *http.Request) error {
			_, err := io.ReadFull(r.Body, make([]byte, 5))
			assert.NoError(t, err)
			begun <- struct{}{}
			rest, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, text(100)[5:], string(rest))
			return ok(w, r)
		}, lock(b, nil, httplock.WithStreamBody(), httplock.WithBodyTimeout(shortBodyTime)))
	}, func(s *site) {
		slow := t.slowly(s, text(100), 10, true)
		await(t, begun, "the handler reads what there is")
		b.AssertHeld(t)
		time.Sleep(2 * shortBodyTime)
		slow.finish()
		t.requireOK(await(t, slow.answer, "the response"))
	})
}
