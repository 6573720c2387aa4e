package httplock_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
	_, err := httplock.New(guard, store, own)
	require.ErrorIs(t, err, core.ErrInvalidOption)
	require.ErrorContains(t, err, "nothing says whose they are: want WithPrincipal, or WithAnonymous")
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

func TestCredentials_ParkingWantsAPrincipal(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	carriers, own := credentials()
	for name, carry := range carriers {
		for _, opts := range [][]httplock.Option{{own}, {own, httplock.WithPrincipal(nobody)}} {
			parking := &testbed.Parking{} // which New cannot know to park
			r := post(t, testbed.OrderPath)
			carry(r)
			testbed.RequireProblem(t, testbed.Do(guarded(b.Locker.Guard(parking), mustNotRun(t), opts...), r), http.StatusConflict, "conflict", true)
			require.Empty(t, parking.Parked(), name)
		}
		parking := &testbed.Parking{}
		r := post(t, testbed.OrderPath)
		carry(r)
		h := guarded(b.Locker.Guard(parking), mustNotRun(t), own, httplock.WithAnonymous())
		require.Equal(t, http.StatusAccepted, testbed.Do(h, r).Status, name)
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
	for _, opts := range [][]httplock.Option{
		{httplock.WithCredentialHeaders("x-shop-pass"), httplock.WithAllowedHeaders("X-Shop-Pass")},
		{httplock.WithAllowedHeaders("X-Shop-Pass"), httplock.WithCredentialHeaders("x-shop-pass")},
		{httplock.WithCredentialHeaders("Content-Type")},
		{httplock.WithCredentialHeaders("a b")},
		{httplock.WithCredentialHeaders("")},
	} {
		_, err := httplock.New(guard, opts...)
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
	_, err := httplock.New(guard, httplock.WithAllowedHeaders("X-Shop-Pass"))
	require.NoError(t, err, "another guard's list is its own")
}
