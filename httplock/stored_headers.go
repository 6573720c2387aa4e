package httplock

import (
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// defaultHeaders are stored with a parked request. A body needs
// Content-Encoding as much as it needs Content-Type, and a request that is conditional must not
// become one that is not. If-Range is none of these: it means nothing without Range.
var defaultHeaders = setOf(
	"Accept", "Accept-Language", "Content-Encoding", "Content-Type", "Idempotency-Key",
	"If-Match", "If-Modified-Since", "If-None-Match", "If-Unmodified-Since", "Traceparent",
)

// StoredHeaders returns the names of the headers that are stored with every parked request,
// in canonical form. [WithAllowedHeaders] adds to them. It is for code that checks a
// configuration, such as package config.
func StoredHeaders() []string { return slices.Sorted(maps.Keys(defaultHeaders)) }

// neverStored are the headers that carry credentials, that belong to one
// connection or describe one transfer, and that say where the request went.
var neverStored = union(credentialHeaders, setOf(
	"Proxy-Authenticate", "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Http2-Settings", "Content-Length", "Expect", "Host",
))

// defaultResponseHeaders are kept of a replay's response.
func defaultResponseHeaders() map[string]bool {
	return map[string]bool{
		"Allow": true, "Content-Disposition": true, "Content-Encoding": true, "Content-Language": true, "Content-Type": true,
		"Etag": true, "Last-Modified": true, "Link": true, "Location": true, "Retry-After": true,
	}
}

// neverKept are the response headers that carry credentials or ask for them, that belong to one
// connection or describe one transfer, and that a result has of its own.
var neverKept = union(credentialHeaders, setOf(
	"Set-Cookie", "Set-Cookie2", "Www-Authenticate", "Proxy-Authenticate", "Authentication-Info", "Proxy-Authentication-Info",
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Content-Length", "Content-Range", "Cache-Control", "Date", truncatedHeader,
))

// addHeaders adds names to a list, unless they are not allowed there.
func addHeaders(list, never map[string]bool, option string, names []string) error {
	for _, name := range names {
		if !isToken(name) {
			return invalid("%s(%q): not a header's name", option, name)
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if never[name] {
			return invalid("%s(%q): this header is never stored", option, name)
		}
		list[name] = true
	}
	return nil
}

// storedHeaders returns the headers of r that may be stored, or nil. Those that Connection names are among them: it tells
// proxies what to remove, and a handler, which runs now or later, sees them.
func storedHeaders(r *http.Request, kept map[string]bool) http.Header {
	var stored http.Header
	for name := range kept {
		values := r.Header[name]
		if len(values) == 0 {
			continue
		}
		if stored == nil {
			stored = http.Header{}
		}
		stored[name] = values
	}
	return stored
}

// namedBy reports whether a list of comma-separated values holds the name.
func namedBy(lists []string, name string) bool {
	for _, list := range lists {
		for item := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(textproto.TrimString(item), name) {
				return true
			}
		}
	}
	return false
}

// isToken reports whether s is a token of RFC 9110: a method or a header's name.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// isFieldValue reports whether s can be a header's value, as RFC 9110 has it.
func isFieldValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
