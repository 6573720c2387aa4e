package conformance

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// sends is a body that tells whether it was asked for.
type sends struct {
	io.Reader
	begun atomic.Bool
}

func (s *sends) Read(p []byte) (int, error) {
	s.begun.Store(true)
	return s.Reader.Read(p)
}

// asksFirst: a client with Expect: 100-continue hears of a held key before it sends its body.
func asksFirst(t *fixture) {
	b := t.setUp()
	for name, size := range map[string]int{"HTTP/1.1": 1000, "HTTP/2": 100_000} { // over HTTP/2 short ones are read
		body := text(size)
		s := t.serveOver(name == "HTTP/2", orders(func(w http.ResponseWriter, r *http.Request) error {
			assert.Equal(t, body, readTwice(t, r))
			return ok(w, r)
		}, lock(b, nil)))
		post := func() (testbed.Answer, bool) {
			sent := &sends{Reader: strings.NewReader(body)}
			r := t.request(s, http.MethodPost, testbed.OrderPath, "")
			r.Header.Set("Expect", "100-continue")
			r.Body, r.ContentLength = io.NopCloser(sent), int64(size)
			resp := t.do(s, r)
			return resp, sent.begun.Load()
		}
		release := b.Hold(t)
		for range 2 {
			resp, sent := post()
			testbed.RequireProblem(t, resp, http.StatusConflict, "conflict", true)
			require.False(t, sent, name+": the body was asked for")
		}
		release()
		b.RequireFree(t)
		resp, sent := post()
		t.requireOK(resp)
		require.True(t, sent)
		b.RequireFree(t)
	}
}

// boundedBodies: what bodies take up that wait is bounded, and free again when they have waited.
func boundedBodies(t *fixture) {
	const size, room = 1_000_000, 2
	b := t.setUp()
	t.overBoth(func() App {
		return orders(func(w http.ResponseWriter, r *http.Request) error {
			assert.Len(t, readTwice(t, r), size)
			return ok(w, r)
		}, lock(b, retry.Policy{MaxWait: time.Minute}, httplock.WithMaxWaitingBytes(room*size+size*3/4)))
	}, func(s *site) {
		served := 0
		for attempt := 0; served == 0 && attempt < 10; attempt++ { // the bodies of other tests may take up all the room of this process
			release := b.Hold(t)
			answers := t.atOnce(s, 2*room, t.posts(s, text(size)))
			for range room {
				if resp := await(t, answers, "refused while the key is held"); resp.Status != 0 {
					testbed.RequireProblem(t, resp, http.StatusServiceUnavailable, "waiting-full", true)
				}
			}
			release()
			for range room {
				if await(t, answers, "those that have waited").Status == http.StatusOK {
					served++
				}
			}
		}
		require.Positive(t, served)
		t.eventually(func() bool { return t.post(s, text(size)).Status == http.StatusOK }, "room for another one")
	})
}

// boundedWaiters: a principal has no more requests waiting than it may.
func boundedWaiters(t *fixture) {
	const most = 2
	b := t.setUp()
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	s := t.serve(orders(ok, lock(b, retry.Policy{MaxWait: time.Minute}, httplock.WithMaxWaitersPerPrincipal(most), httplock.WithPrincipal(user))))
	for range 2 { // what has waited does not count any more
		release := b.Hold(t)
		of := func(user string) func(int) *http.Request {
			return func(int) *http.Request {
				r := t.request(s, http.MethodPost, testbed.OrderPath, "x")
				r.Header.Set("X-User", user)
				return r
			}
		}
		alices, bobs := t.atOnce(s, 5, of("alice")), t.atOnce(s, 1, of("bob"))
		for range 5 - most {
			testbed.RequireProblem(t, await(t, alices, "refused"), http.StatusTooManyRequests, "principal-waiting-full", true)
		}
		for range most + 1 {
			await(t, b.Conflicts, "the others wait")
		}
		release()
		for range most {
			t.requireOK(await(t, alices, "those that waited"))
		}
		t.requireOK(await(t, bobs, "another principal's"))
	}
}

// brokenBody: a client that leaves while it sends its body, or sends less than it said, leaves nothing behind.
func brokenBody(t *fixture) {
	b := t.setUp()
	for name, policy := range policies() {
		arrived, front := arrivals()
		t.overBoth(func() App {
			return orders(func(w http.ResponseWriter, r *http.Request) error {
				assert.Empty(t, r.Header.Get(slowHeader), "the handler ran without its body")
				return ok(w, r)
			}, front, lock(b, policy, httplock.WithMaxWaitersPerPrincipal(1), sentBy("all")))
		}, func(s *site) {
			for _, lies := range []bool{false, true} {
				ctx, leave := context.WithCancel(t.Context())
				reader, writer := io.Pipe()
				r := t.request(s, http.MethodPost, testbed.OrderPath, "").WithContext(ctx)
				r.Header.Set(slowHeader, "yes")
				r.Body, r.ContentLength = reader, 1000
				refused := make(chan bool, 1)
				go func() {
					resp, err := testbed.Send(s.client, r)
					refused <- err != nil || resp.Status == http.StatusBadRequest
				}()
				_, err := io.WriteString(writer, text(100))
				require.NoError(t, err)
				await(t, arrived, "the request")
				b.RequireFree(t)
				if lies {
					_ = writer.Close()
				} else {
					leave()
					_ = writer.CloseWithError(context.Canceled) // net/http's client waits for what it reads
				}
				require.True(t, await(t, refused, name))
				leave()
				t.eventually(func() bool { return t.post(s, "x").Status != http.StatusTooManyRequests }, name+": it is forgotten")
				t.requireOK(t.post(s, "x"))
				b.RequireFree(t)
			}
		})
	}
}
