package httplock

import (
	"net/http"
	"net/textproto"
)

// credentialHeaders say who sends a request, by a standard or by custom. It is the one
// list of them: such a header is not stored, makes no key, and a request that has one is
// parked, or has its response stored, only on a principal's behalf, or with WithAnonymous. WithCredentialHeaders
// adds to it. A client's certificate counts too, whether TLS ends here or at a proxy.
var credentialHeaders = setOf(
	"Authorization", "Proxy-Authorization", "Cookie", "Cookie2",
	"Api-Key", "Apikey", "X-Api-Key", "X-Auth-Key", "X-Auth-Token", "X-Access-Token", "X-Id-Token", "X-Session-Token",
	"X-Csrf-Token", "X-Xsrf-Token", "Dpop",
	"X-Amz-Security-Token", "X-Amzn-Oidc-Data", "X-Goog-Api-Key", "X-Goog-Iap-Jwt-Assertion", "X-Functions-Key",
	"Ocp-Apim-Subscription-Key", "Cf-Access-Jwt-Assertion", "X-Forwarded-Access-Token", "Private-Token", "X-Vault-Token",
	"Client-Cert", "X-Client-Cert", "X-Forwarded-Client-Cert", "X-Ssl-Client-Cert", "Ssl-Client-Cert",
)

// WithCredentialHeaders adds request headers to those that carry credentials: Authorization,
// Proxy-Authorization, Cookie, X-Api-Key, X-Auth-Token, X-Csrf-Token and about twenty that
// are in common use for API keys, tokens and the certificates of clients. They are never
// stored: WithAllowedHeaders refuses them. A request that has one, or a TLS client's certificate, is anonymous only where
// [WithAnonymous] says so: without a principal it is not parked, and refused with 500 if it has an Idempotency-Key of
// [WithIdempotency]. Headers in which a proxy in front names the user belong here.
func WithCredentialHeaders(names ...string) Option {
	return func(m *Middleware) error {
		return addHeaders(m.credentials, nil, "WithCredentialHeaders", names)
	}
}

// checkCredentials is called once all options are known.
func (m *Middleware) checkCredentials() error {
	for name := range m.keptHeaders {
		if m.credentials[name] {
			return invalid("the header %s carries credentials by WithCredentialHeaders, and would be stored with parked requests", name)
		}
	}
	return nil
}

// carriesCredentials reports whether a request says who sends it.
func (m *Middleware) carriesCredentials(r *http.Request) bool {
	for name, values := range r.Header {
		if m.credentials[name] && len(values) > 0 {
			return true
		}
	}
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0
}

// setOf is a set of headers' names.
func setOf(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	return set
}

// union is a set of what any of the sets has.
func union(sets ...map[string]bool) map[string]bool {
	all := map[string]bool{}
	for _, set := range sets {
		for name := range set {
			all[name] = true
		}
	}
	return all
}
