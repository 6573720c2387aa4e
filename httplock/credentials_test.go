package httplock_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// bearer is a principal function: the token's owner.
func bearer(r *http.Request) (string, error) {
	switch r.Header.Get("Authorization") {
	case "":
		return "", nil
	case "Bearer " + testbed.Secret:
		return "user:ann", nil
	default:
		return "", fmt.Errorf("token: %w", httplock.ErrForbidden)
	}
}

// nobody knows no credentials.
func nobody(*http.Request) (string, error) { return "", nil }

func anybody(*http.Request, string) error { return nil }

// fromAnn is a request that carries her token.
func fromAnn(t *testing.T, target string) *http.Request {
	t.Helper()
	r := post(t, target)
	r.Header.Set("Authorization", "Bearer "+testbed.Secret)
	return r
}

func TestPrincipal_IsStoredAndAuthorizedAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		asked := make(chan string, 2)
		reauthorize := func(r *http.Request, principal string) error {
			parked, replayed := httplock.Replayed(r.Context())
			assert.True(t, replayed)
			assert.Equal(t, principal, parked.Principal)
			assert.Equal(t, testbed.Secret, r.PathValue("id"))
			assert.NotContains(t, r.Header, "Authorization")
			asked <- principal
			return nil
		}
		ran := make(chan string, 2)
		d.handle(func(_ http.ResponseWriter, r *http.Request) {
			parked, _ := httplock.Replayed(r.Context())
			ran <- parked.Principal
		}, sentBy(bearer, reauthorize))

		require.Equal(t, http.StatusOK, testbed.Do(d.mux, fromAnn(t, testbed.OrderPath)).Status)
		require.Empty(t, <-ran)
		require.Empty(t, asked, "only replays are authorized again")

		release := d.Hold(t)
		anns := requireParked(t, testbed.Do(d.mux, fromAnn(t, testbed.OrderPath)))
		anonymous := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
		require.Equal(t, "user:ann", d.status(t, anns).Principal)
		require.Empty(t, d.status(t, anonymous).Principal)
		d.work(t)
		release()
		for _, principal := range []string{"user:ann", ""} {
			require.Equal(t, principal, <-asked)
			require.Equal(t, principal, <-ran)
		}
		require.Equal(t, http.StatusOK, d.result(t, anns).Status)
	})
}

// That a guard which is not skipped asks too is conformance's "forbidden replay never runs".
func TestPrincipal_WhoMayNoMoreGets403AndNothingRuns(t *testing.T) {
	d := openParking(t, redistest.Embedded(t))
	skipped := httplock.WithSkip(func(r *http.Request) bool {
		_, replayed := httplock.Replayed(r.Context())
		return replayed
	})
	d.handle(mustNotRun(t), skipped, sentBy(bearer, func(*http.Request, string) error {
		return fmt.Errorf("%s was dismissed: %w", testbed.Secret, httplock.ErrForbidden)
	}))
	release := d.Hold(t)
	location := requireParked(t, testbed.Do(d.mux, fromAnn(t, testbed.OrderPath)))
	d.work(t)
	release()
	resp := d.result(t, location)
	testbed.RequireProblem(t, resp, http.StatusForbidden, "forbidden", false)
	require.Equal(t, 1, d.status(t, location).Attempts, "it is not tried again")
	require.Contains(t, d.log.String(), "was dismissed")
}

func TestPrincipal_ThatCannotBeToldIsNotParked(t *testing.T) {
	for name, test := range map[string]struct {
		principal func(*http.Request) (string, error)
		status    int
		kind      string
	}{
		"forbidden":   {bearer, http.StatusForbidden, "forbidden"},
		"error":       {func(*http.Request) (string, error) { return "", errors.New(testbed.Secret) }, http.StatusInternalServerError, "internal"},
		"too long":    {func(*http.Request) (string, error) { return strings.Repeat("x", 257), nil }, http.StatusInternalServerError, "internal"},
		"unprintable": {func(*http.Request) (string, error) { return "a\nb", nil }, http.StatusInternalServerError, "internal"},
	} {
		t.Run(name, func(t *testing.T) {
			d := openParking(t, redistest.Embedded(t))
			ran := 0
			d.handle(func(http.ResponseWriter, *http.Request) { ran++ }, sentBy(test.principal, anybody))
			r := post(t, testbed.OrderPath)
			r.Header.Set("Authorization", "Bearer nobody's")
			require.Equal(t, http.StatusOK, testbed.Do(d.mux, r).Status, "who may is for the handler to say")
			d.Hold(t)
			testbed.RequireProblem(t, testbed.Do(d.mux, r), test.status, test.kind, false)
			require.Equal(t, 1, ran)
			d.requireNothingParked(t)
		})
	}
}

func TestPrincipal_AReplayWithAPrincipalNeedsAGuardThatCanAuthorizeIt(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	other := httplock.PerKey(guard, func(*http.Request) (string, error) { return "other", nil })
	own := func(opts ...httplock.Option) func(http.Handler) http.Handler {
		return httplock.PerKey(guard, func(*http.Request) (string, error) { return testbed.OrderKey, nil }, opts...)
	}
	with := own(sentBy(bearer, anybody))
	m := message(t, post(t, testbed.OrderPath))
	m.Principal = "user:ann"
	for name, test := range map[string]struct {
		h   http.Handler
		why string // it is handed back
	}{
		"none":                   {own()(mustNotRun(t)), "give Replay WithReplayReauthorize"},
		"anonymous now":          {own(httplock.WithAnonymous())(mustNotRun(t)), "give Replay WithReplayReauthorize"},
		"its own":                {with(http.HandlerFunc(ok)), ""},
		"behind another's guard": {other(with(http.HandlerFunc(ok))), ""},
		"in front of another":    {with(own()(http.HandlerFunc(ok))), ""},
		"too late":               {own()(with(mustNotRun(t))), "the route has no WithReauthorize now"},
	} {
		t.Run(name, func(t *testing.T) {
			underKey(t, b, func(ctx context.Context) {
				err := httplock.Replay(test.h)(ctx, m)
				if test.why == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, test.why)
				require.True(t, isHandedBack(err))
				require.NotErrorIs(t, err, core.ErrConflict)
				require.NotContains(t, err.Error(), "user:ann")
			})
		})
	}
	m.Principal = ""
	underKey(t, b, func(ctx context.Context) {
		require.NoError(t, httplock.Replay(own()(http.HandlerFunc(ok)))(ctx, m))
	})
}

// New says what is missing of who sends a request.
func TestPrincipal_IsSaidAtConstruction(t *testing.T) {
	d := openParking(t, redistest.Embedded(t))
	rejects := d.Locker.Guard(core.RejectConflicts)
	parks := d.Locker.Guard(retry.Policy{Then: delayqueue.Policy(d.queue)})
	store := httplock.WithIdempotency(newIdempotency(t, d.Fixture))
	principal, mayStill, most := httplock.WithPrincipal(bearer), httplock.WithReauthorize(anybody), httplock.WithMaxWaitersPerPrincipal(1)
	for name, test := range map[string]struct {
		guard *core.Guard
		opts  []httplock.Option
		want  string // empty: nothing is missing
	}{
		"rejects":                     {rejects, nil, ""},
		"rejects, with a principal":   {rejects, []httplock.Option{principal}, ""},
		"rejects, anonymous":          {rejects, []httplock.Option{httplock.WithAnonymous()}, ""},
		"parks":                       {parks, nil, "nothing says on whose behalf: want WithPrincipal and WithReauthorize, or WithAnonymous"},
		"parks, with a principal":     {parks, []httplock.Option{principal}, "want WithReauthorize"},
		"parks, and asks again":       {parks, []httplock.Option{mayStill, principal, store, most}, ""},
		"parks, anonymous":            {parks, []httplock.Option{httplock.WithAnonymous(), store}, ""},
		"keeps responses":             {rejects, []httplock.Option{store}, "nothing says whose they are: want WithPrincipal, or WithAnonymous"},
		"keeps a principal's":         {rejects, []httplock.Option{store, principal}, ""},
		"counts":                      {rejects, []httplock.Option{most}, "WithMaxWaitersPerPrincipal needs WithPrincipal"},
		"counts, anonymous":           {rejects, []httplock.Option{most, httplock.WithAnonymous()}, "WithMaxWaitersPerPrincipal needs WithPrincipal"},
		"asks about nobody":           {rejects, []httplock.Option{mayStill}, "WithReauthorize needs WithPrincipal"},
		"asks, anonymous":             {parks, []httplock.Option{mayStill, httplock.WithAnonymous()}, "WithReauthorize needs WithPrincipal"},
		"both":                        {rejects, []httplock.Option{principal, httplock.WithAnonymous()}, "exclude one another"},
		"both, the other way":         {parks, []httplock.Option{httplock.WithAnonymous(), principal, mayStill}, "exclude one another"},
		"no principal function":       {rejects, []httplock.Option{httplock.WithPrincipal(nil)}, "WithPrincipal(nil)"},
		"no reauthorization function": {rejects, []httplock.Option{principal, httplock.WithReauthorize(nil)}, "WithReauthorize(nil)"},
	} {
		_, err := httplock.New(test.guard, test.opts...)
		if test.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		require.ErrorContains(t, err, test.want, name)
	}
}

// credentialHeaders are those that every service has on its list.
var credentialHeaders = []string{
	"Authorization", "Proxy-Authorization", "Cookie", "Cookie2",
	"X-Api-Key", "X-Auth-Token", "Api-Key", "X-Access-Token", "X-Amz-Security-Token", "X-Csrf-Token", "X-Xsrf-Token",
	"Apikey", "X-Auth-Key", "X-Session-Token", "X-Id-Token", "X-Goog-Api-Key", "X-Functions-Key", "Ocp-Apim-Subscription-Key",
	"Private-Token", "X-Vault-Token", "X-Forwarded-Access-Token", "Cf-Access-Jwt-Assertion", "X-Goog-Iap-Jwt-Assertion", "X-Amzn-Oidc-Data",
	"Dpop", "Client-Cert", "X-Forwarded-Client-Cert", "X-Client-Cert", "X-Ssl-Client-Cert", "Ssl-Client-Cert",
}

// credentials are requests' ways to say who sends them, with the options of a service that knows all of them.
func credentials() (carriers map[string]func(*http.Request), own httplock.Option) {
	carriers = map[string]func(*http.Request){
		"a certificate": func(r *http.Request) { r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}} },
	}
	for _, name := range append(credentialHeaders, "X-Shop-Pass") {
		carriers[name] = func(r *http.Request) { r.Header.Set(name, testbed.Secret) }
	}
	return carriers, httplock.WithCredentialHeaders("x-shop-pass")
}

// Whoever guesses another's Idempotency-Key must not see the response: neither if the service can tell the two apart, nor if it
// cannot and has not said that it does not matter.
func TestCredentials_IdempotencyWantsAPrincipal(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	carriers, own := credentials()
	store := httplock.WithIdempotency(newIdempotency(t, b))
	said := &testbed.Log{}
	sender := func(r *http.Request) (string, error) { return r.Header.Get("X-Sender"), nil }
	for name, carry := range carriers {
		var runs atomic.Int64
		send := func(from string, whose httplock.Option) testbed.Answer {
			r := withKey(t, testbed.OrderPath, `"`+name+`"`, "{}")
			r.Header.Set("X-Sender", from)
			carry(r)
			return testbed.Do(guarded(guard, count(&runs, http.StatusOK), store, own, whose, httplock.WithLogger(said.Logger())), r)
		}
		testbed.RequireProblem(t, send("", httplock.WithPrincipal(sender)), http.StatusInternalServerError, "misconfigured", false)
		require.Zero(t, runs.Load(), name)
		alice := send("alice", httplock.WithPrincipal(sender))
		require.Equal(t, "run 1", alice.Body, name)
		require.Equal(t, "run 2", send("bob", httplock.WithPrincipal(sender)).Body, name)
		requireReplayed(t, alice, send("alice", httplock.WithPrincipal(sender)))
		anybodys := send("", httplock.WithAnonymous())
		require.Equal(t, "run 3", anybodys.Body, name)
		requireReplayed(t, anybodys, send("", httplock.WithAnonymous()))
	}
	require.Contains(t, said.String(), "the function of WithPrincipal returned no principal")
	require.NotContains(t, said.String(), testbed.Secret)
}

// An Authorization without a value is one too. The log says once why nothing is parked.
func TestCredentials_ParkingWantsAPrincipal(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	carriers, own := credentials()
	carriers["nothing"] = func(r *http.Request) { r.Header.Set("Authorization", "") }
	for name, carry := range carriers {
		for whose, opt := range map[string]httplock.Option{"not said": own, "known": httplock.WithPrincipal(nobody), "anybody": httplock.WithAnonymous()} {
			parking, said := &testbed.Parking{}, &testbed.Log{} // which New cannot know to park
			h := guarded(b.Locker.Guard(parking), http.HandlerFunc(ok), own, opt, httplock.WithLogger(said.Logger()))
			send := func(target string) testbed.Answer {
				r := post(t, target)
				carry(r)
				return testbed.Do(h, r)
			}
			require.Equal(t, http.StatusOK, send("/orders/free").Status, "who may is for the handler to say")
			require.Empty(t, said.String())
			if whose == "anybody" {
				require.Equal(t, http.StatusAccepted, send(testbed.OrderPath).Status, name)
				continue
			}
			for range 2 {
				testbed.RequireProblem(t, send(testbed.OrderPath), http.StatusConflict, "conflict", true)
			}
			require.Empty(t, parking.Parked(), name)
			require.Equal(t, 1, strings.Count(said.String(), "level=WARN"), said.String())
			require.Contains(t, said.String(), "WithPrincipal")
			require.Contains(t, said.String(), "WithAnonymous")
			require.NotContains(t, said.String(), testbed.Secret)
		}
	}
}

func TestCredentials_AreNeverStored(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	for _, name := range credentialHeaders {
		_, err := httplock.New(guard, httplock.WithAllowedHeaders(name))
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		_, err = httplock.New(guard, remembering(newIdempotency(t, b), httplock.KeepResponseHeaders(name)))
		require.ErrorIs(t, err, core.ErrInvalidOption, "a response's %s", name)
		h := httplock.PerKey(guard, httplock.Header("k:", name))(mustNotRun(t))
		r := post(t, "/")
		r.Header.Set(name, "x")
		testbed.RequireProblem(t, testbed.Do(h, r), http.StatusInternalServerError, "internal", false)
	}
}

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
