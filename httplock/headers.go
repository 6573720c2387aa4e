package httplock

import (
	"net/http"
	"net/textproto"
	"strings"
)

// defaultHeaders are stored with a parked request. A body needs
// Content-Encoding as much as it needs Content-Type.
func defaultHeaders() map[string]bool {
	return map[string]bool{
		"Accept": true, "Accept-Language": true, "Content-Encoding": true, "Content-Type": true,
		"Idempotency-Key": true, "Traceparent": true,
	}
}

// neverStored are the headers that carry credentials, that belong to one
// connection or describe one transfer, and that say where the request went.
var neverStored = map[string]bool{
	"Authorization": true, "Cookie": true, "Proxy-Authorization": true, "Proxy-Authenticate": true,
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Http2-Settings": true,
	"Content-Length": true, "Expect": true, "Host": true,
}

// storedHeaders returns the headers of r that may be stored, or nil. One that
// Connection names belongs to the connection, whatever its name.
func storedHeaders(r *http.Request, kept map[string]bool) http.Header {
	var stored http.Header
	for name := range kept {
		values := r.Header[name]
		if len(values) == 0 || namedBy(r.Header["Connection"], name) {
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
