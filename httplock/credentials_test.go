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

// credentials are requests' ways to say who sends them, with the options of a service
// that knows all of them.
func credentials() (carriers map[string]func(*http.Request), own httplock.Option) {
	carriers = map[string]func(*http.Request){
		"a certificate": func(r *http.Request) { r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}} },
	}
	for _, name := range append(credentialHeaders, "X-Shop-Pass") {
		carriers[name] = func(r *http.Request) { r.Header.Set(name, testbed.Secret) }
	}
	return carriers, httplock.WithCredentialHeaders("x-shop-pass")
}

// Whoever guesses another's Idempotency-Key and payload must not see the response.
func TestCredentials_IdempotencyWantsAPrincipal(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	carriers, own := credentials()
	for name, carry := range carriers {
		var runs atomic.Int64
		request := func() *http.Request {
			r := once(t, testbed.OrderPath, `"`+name+`"`, "{}")
			carry(r)
			return r
		}
		h := idempotentWith(t, b, count(&runs, http.StatusOK), own)
		testbed.RequireProblem(t, testbed.Do(h, request()), http.StatusInternalServerError, "misconfigured", false)
		require.Zero(t, runs.Load(), name)
		h = idempotentWith(t, b, count(&runs, http.StatusOK), own, httplock.Anonymous())
		require.Equal(t, http.StatusOK, testbed.Do(h, request()).Status, name)
	}
}

func idempotentWith(t *testing.T, b *testbed.Bed, h http.HandlerFunc, opts ...httplock.Option) http.Handler {
	t.Helper()
	return guarded(b.Locker.Guard(core.RejectConflicts), h, append(opts, remembering(newIdempotency(t, b)))...)
}

func TestCredentials_ParkingWantsAPrincipal(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	carriers, own := credentials()
	for name, carry := range carriers {
		parking := &testbed.Parking{}
		h := guarded(b.Locker.Guard(parking), mustNotRun(t), own)
		r := post(t, testbed.OrderPath)
		carry(r)
		testbed.RequireProblem(t, testbed.Do(h, r), http.StatusConflict, "conflict", true)
		require.Empty(t, parking.Parked(), name)
	}
}

func TestCredentials_AreNeverStored(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	for _, name := range credentialHeaders {
		_, err := httplock.New(guard, httplock.AllowHeaders(name))
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		_, err = httplock.New(guard, httplock.WithIdempotency(newIdempotency(t, b), httplock.KeepResponseHeaders(name)))
		require.ErrorIs(t, err, core.ErrInvalidOption, "a response's %s", name)
		h := httplock.PerKey(guard, httplock.Header("k:", name))(mustNotRun(t))
		r := post(t, "/")
		r.Header.Set(name, "x")
		testbed.RequireProblem(t, testbed.Do(h, r), http.StatusInternalServerError, "internal", false)
	}
	for _, opts := range [][]httplock.Option{
		{httplock.WithCredentialHeaders("x-shop-pass"), httplock.AllowHeaders("X-Shop-Pass")},
		{httplock.AllowHeaders("X-Shop-Pass"), httplock.WithCredentialHeaders("x-shop-pass")},
		{httplock.WithCredentialHeaders("Content-Type")},
		{httplock.WithCredentialHeaders("a b")},
		{httplock.WithCredentialHeaders("")},
	} {
		_, err := httplock.New(guard, opts...)
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
	_, err := httplock.New(guard, httplock.AllowHeaders("X-Shop-Pass"))
	require.NoError(t, err, "another guard's list is its own")
}
