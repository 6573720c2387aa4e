package httplock

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// captureVersion is the version of the stored form. A change that an older
// process would misread needs the next one: such a process hands the request back.
const captureVersion = 1

// capture is a request in the form that a queue stores: a line of JSON, and the
// body as it is.
type capture struct {
	Version int    `json:"v"`
	Method  string `json:"method"`
	// Target is the request's target as the client sent it, reduced to path and
	// query. Like the values in Header it is a string of bytes, each one stored as
	// the character of that number: neither has to be UTF-8.
	Target string `json:"target"`
	// Host is the one that the route's own pattern asks for, if it does: never the client's.
	Host   string      `json:"host,omitempty"`
	Header http.Header `json:"header,omitempty"`

	body []byte
}

// replayable reports whether a request can be stored and run later. One that
// turns its connection into something else, or that ends with trailers, cannot.
func replayable(r *http.Request) bool {
	_, ok := target(r)
	return ok && r.Method != http.MethodConnect && isToken(r.Method) &&
		len(r.Header["Upgrade"]) == 0 && len(r.Trailer) == 0
}

// target returns the request's path and query as the client sent them. That is
// what the outermost handler saw: the URL may have lost a prefix since.
func target(r *http.Request) (string, bool) {
	if strings.HasPrefix(r.RequestURI, "/") {
		return r.RequestURI, true
	}
	u := r.URL
	if r.RequestURI != "" { // absolute-form, or "*"
		var err error
		if u, err = url.ParseRequestURI(r.RequestURI); err != nil {
			return "", false
		}
	}
	if u == nil || u.Opaque != "" {
		return "", false
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	if u.ForceQuery || u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	return path, strings.HasPrefix(path, "/")
}

// encode returns a request in its stored form.
func encode(r *http.Request, content []byte, header http.Header, host string) ([]byte, error) {
	if len(r.Trailer) > 0 { // undeclared ones are known only now
		return nil, fmt.Errorf("%w: it has trailers", errNotReplayable)
	}
	at, _ := target(r)
	return envelope(capture{
		Version: captureVersion, Method: r.Method, Target: escapeLatin1(at), Host: host, Header: escapeAll(header),
	}, content)
}

// decode reads a stored form. What it returns makes a valid request.
func decode(payload []byte) (*capture, error) {
	fail := func(format string, args ...any) (*capture, error) {
		return nil, fmt.Errorf("httplock: decode a parked request: "+format, args...)
	}
	c := &capture{}
	var err error
	if c.body, err = openEnvelope(payload, c, captureVersion); err != nil {
		return fail("%w", err)
	}
	if c.Version < captureVersion {
		return fail("version %d, want %d", c.Version, captureVersion)
	}
	if c.Target, err = unescapeLatin1(c.Target); err != nil {
		return fail("target: %w", err)
	}
	if !isToken(c.Method) || c.Method == http.MethodConnect {
		return fail("method %q", c.Method)
	}
	if c.Host != "" && !isHost(c.Host) {
		return fail("host %q", c.Host)
	}
	if _, err := c.url(); err != nil {
		return fail("%w", err)
	}
	if err := unescapeAll(c.Header, neverStored); err != nil {
		return fail("%w", err)
	}
	return c, nil
}

// url parses the target as net/http does.
func (c *capture) url() (*url.URL, error) {
	u, err := url.ParseRequestURI(c.Target)
	if err != nil || !strings.HasPrefix(c.Target, "/") || u.Host != "" {
		return nil, fmt.Errorf("target %q", c.Target)
	}
	return u, nil
}

// isHost reports whether s is a host, perhaps with a port, as patterns and requests have them.
func isHost(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(".-_:[]", r)
	})
}

// patternHost is the host in a pattern of http.ServeMux, or empty.
func patternHost(pattern string) string {
	host, _, rooted := strings.Cut(withoutMethod(pattern), "/")
	if !rooted || !isHost(host) {
		return ""
	}
	return host
}
