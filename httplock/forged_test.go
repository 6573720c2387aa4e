package httplock_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// forged are headers by which a client might hope to pass for a replay, for somebody else, or for another request.
var forged = []string{
	"Perkey-Replay", "X-Perkey-Replay", "Perkey-Replayed", "X-Perkey-Replayed", "Perkey-Id", "X-Perkey-Id", "Perkey-Ticket", "X-Perkey-Ticket",
	"Perkey-Principal", "X-Perkey-Principal", "Perkey-Key", "X-Perkey-Key", "Perkey-Truncated", "X-Principal", "X-User", "X-Replay",
	"X-Original-Url", "X-Rewrite-Url", "X-Http-Method-Override", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Forwarded",
}

// sendRaw sends bytes to a server as they are.
func sendRaw(t *testing.T, url, message string) testbed.Answer {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, message)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return testbed.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body)}
}

func TestReplay_ForgedInputHasNoEffectOnReplays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		replays := make(chan *http.Request, 1)
		d.handle(func(_ http.ResponseWriter, r *http.Request) {
			if _, replayed := httplock.Replayed(r.Context()); replayed {
				replays <- r
			}
		}, sentBy(bearer, func(_ *http.Request, principal string) error {
			if principal != "user:ann" {
				return httplock.ErrForbidden
			}
			return nil
		}), httplock.WithAllowedHeaders("X-Hop"))
		d.mux.Handle("/rejected/{id}", httplock.PerKey(d.Locker.Guard(core.RejectConflicts), orderKey)(mustNotRun(t)))
		d.work(t)
		url, _ := testbed.Serve(t, d.mux)

		message := func(target string) string {
			var b strings.Builder
			fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: evil.example\r\n", target)
			for _, name := range forged {
				fmt.Fprintf(&b, "%s: %s\r\n", name, testbed.TicketID)
			}
			b.WriteString("X-Hop: 1\r\nIdempotency-Key: 2\r\nAccept: a/b\r\nConnection: close, x-hop, IDEMPOTENCY-KEY\r\nConnection: authorization\r\n")
			fmt.Fprintf(&b, "Authorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}", testbed.Secret)
			return b.String()
		}
		require.Equal(t, http.StatusOK, sendRaw(t, url, message(testbed.OrderPath)).Status)
		require.Empty(t, replays, "no header makes a replay")

		for _, target := range []string{
			testbed.OrderPath + "?a=b",
			"http://evil.example" + testbed.OrderPath + "?a=b",
			"http://user:password@evil.example:1" + testbed.OrderPath + "?a=b",
			"https://[::1]:2" + testbed.OrderPath + "?a=b",
		} {
			t.Run(target, func(t *testing.T) {
				release := d.Hold(t)
				testbed.RequireProblem(t, sendRaw(t, url, message("/rejected/"+testbed.Secret)), http.StatusConflict, "conflict", true)
				location := requireParked(t, sendRaw(t, url, message(target)))
				release()
				r := <-replays
				require.Equal(t, http.MethodPost, r.Method)
				require.Equal(t, testbed.OrderPath+"?a=b", r.RequestURI)
				require.Equal(t, testbed.OrderPath+"?a=b", r.URL.String())
				require.Empty(t, r.Host)
				require.Equal(t, "192.0.2.1:1", r.RemoteAddr)
				require.Equal(t, http.Header{"Accept": {"a/b"}, "Idempotency-Key": {"2"}, "X-Hop": {"1"}}, r.Header)
				parked, _ := httplock.Replayed(r.Context())
				require.Equal(t, httplock.Parked{ID: strings.TrimPrefix(location, "/tickets/"), Principal: "user:ann"}, parked)
				require.Equal(t, http.StatusOK, d.result(t, location).Status)
			})
		}
	})
}

// contents is all that Redis holds, names and values.
func contents(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	ctx := t.Context()
	var b strings.Builder
	names, err := rdb.Keys(ctx, "*").Result()
	require.NoError(t, err)
	for _, name := range names {
		kind, err := rdb.Type(ctx, name).Result()
		require.NoError(t, err)
		var value any
		switch kind {
		case "string":
			value, err = rdb.Get(ctx, name).Result()
		case "hash":
			value, err = rdb.HGetAll(ctx, name).Result()
		case "list":
			value, err = rdb.LRange(ctx, name, 0, -1).Result()
		case "set":
			value, err = rdb.SMembers(ctx, name).Result()
		case "zset":
			value, err = rdb.ZRangeWithScores(ctx, name, 0, -1).Result()
		case "stream":
			value, err = rdb.XRange(ctx, name, "-", "+").Result()
		case "none": // it has gone meanwhile
		default:
			require.Fail(t, "a key of type "+kind)
		}
		if err != nil && !assert.ErrorIs(t, err, redis.Nil) {
			return ""
		}
		fmt.Fprintln(&b, name, kind, value)
	}
	return b.String()
}

// It is long since it is one story.
func TestCredentials_AreNeverStoredOrLogged(t *testing.T) {
	defaults := testbed.CaptureLog(t)
	redistest.EachAlone(t, func(t *testing.T, env *redistest.Env) {
		secrets := map[string]string{}
		hidden := func(where string) string {
			secrets[where] = rand.Text()
			return secrets[where]
		}
		request := func(t *testing.T, target string) *http.Request {
			r := testbed.Request(t, http.MethodPost, "http://user:"+hidden("target's user")+"@evil.example"+target, "body-of-"+target)
			for _, name := range []string{
				"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "X-Auth-Token", "Accept", "Perkey-Principal",
			} {
				r.Header.Set(name, hidden(name))
			}
			return r
		}
		responseHeaders := []string{"Set-Cookie", "WWW-Authenticate", "Authentication-Info", "Authorization", "X-Api-Key", "X-Csrf-Token"}
		respond := func(status int) http.HandlerFunc {
			var values []string
			for _, name := range responseHeaders {
				values = append(values, hidden("response's "+name))
			}
			return func(w http.ResponseWriter, r *http.Request) {
				for i, name := range responseHeaders {
					w.Header().Add(name, values[i])
				}
				w.WriteHeader(status)
				_, err := io.WriteString(w, "answer-to-"+r.URL.Path)
				assert.NoError(t, err)
			}
		}

		d := openParking(t, env, delayqueue.WithMaxAttempts(2))
		ann := sentBy(func(*http.Request) (string, error) { return "user:ann", nil }, func(r *http.Request, _ string) error {
			if strings.HasPrefix(r.URL.Path, "/forbidden/") {
				return httplock.ErrForbidden
			}
			return nil
		})
		requireClean := func(when string, held ...string) {
			t.Helper()
			stored := contents(t, d.Redis)
			for _, mark := range held {
				require.Contains(t, stored, mark, when)
			}
			for where, value := range secrets {
				require.NotContains(t, stored, value, where+", "+when)
				require.NotContains(t, d.log.String(), value, where+", "+when)
				require.NotContains(t, defaults.String(), value, where+", "+when)
			}
		}
		running, goOn := make(chan struct{}), make(chan struct{})
		done, unavailable := respond(http.StatusForbidden), respond(http.StatusServiceUnavailable)
		for path, handler := range map[string]http.HandlerFunc{
			"/done/{id}": func(w http.ResponseWriter, r *http.Request) {
				if _, replayed := httplock.Replayed(r.Context()); replayed {
					close(running)
					<-goOn
				}
				done(w, r)
			},
			"/fails/{id}": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "86400") // beyond the request's age
				unavailable(w, r)
			},
			"/forbidden/{id}": respond(http.StatusOK),
		} {
			d.mux.Handle(path, d.perKey(ann)(handler))
		}
		d.mux.Handle("/anonymous/{id}", d.perKey(httplock.WithAnonymous())(respond(http.StatusOK)))
		d.mux.Handle("/refused/{id}", d.perKey(sentBy(nobody, anybody))(respond(http.StatusOK)))

		testbed.Do(d.mux, request(t, "/done/1"))
		requireClean("run at once")
		release := d.HoldKey(t, "order:1")
		location := map[string]string{}
		for _, at := range []string{"/done/1", "/fails/1", "/forbidden/1", "/anonymous/1"} {
			location[at] = requireParked(t, testbed.Do(d.mux, request(t, at)))
		}
		testbed.RequireProblem(t, testbed.Do(d.mux, request(t, "/refused/1")), http.StatusConflict, "conflict", true)
		requireClean("parked", "body-of-/done/1", "body-of-/anonymous/1", "user:ann")
		d.work(t)
		release()
		<-running
		requireClean("running", "body-of-/done/1")
		close(goOn)
		d.await(t, location["/fails/1"], delayqueue.StateDead)
		for at, status := range map[string]int{"/done/1": 403, "/forbidden/1": 403, "/anonymous/1": 200} {
			resp := d.result(t, location[at])
			require.Equal(t, status, resp.Status)
			for where, value := range secrets {
				require.NotContains(t, fmt.Sprint(resp), value, where)
			}
		}
		letters, _, err := d.queue.List(context.Background(), delayqueue.StateDead, "", 10)
		require.NoError(t, err)
		require.Len(t, letters, 1)
		requireClean("ended", "answer-to-/done/1", "answer-to-/anonymous/1", "body-of-/fails/1", "answer-to-/fails/1")
	})
}
