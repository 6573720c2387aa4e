package httplock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
)

// captureVersion is the version of the stored form. A change that an older
// process would misread needs the next one.
const captureVersion = 1

// capture is a request in the form that a queue stores: a line of JSON, and the
// body as it is.
type capture struct {
	Version int    `json:"v"`
	Method  string `json:"method"`
	// Target is the request's target as the client sent it, reduced to path and
	// query. Like the values in Header it is a string of bytes, each one stored as
	// the character of that number: neither has to be UTF-8.
	Target string      `json:"target"`
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
func encode(r *http.Request, body *body, kept map[string]bool) ([]byte, error) {
	content, err := body.all()
	if err != nil {
		return nil, err
	}
	if len(r.Trailer) > 0 { // undeclared ones are known only now
		return nil, fmt.Errorf("%w: it has trailers", errNotReplayable)
	}
	at, _ := target(r)
	head := capture{Version: captureVersion, Method: r.Method, Target: widen(at)}
	for name, values := range storedHeaders(r, kept) {
		if head.Header == nil {
			head.Header = http.Header{}
		}
		for _, v := range values {
			head.Header[name] = append(head.Header[name], widen(v))
		}
	}
	line, err := json.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("httplock: encode the request: %w", err)
	}
	payload := make([]byte, 0, len(line)+1+len(content))
	payload = append(payload, line...)
	payload = append(payload, '\n')
	return append(payload, content...), nil
}

// decode reads a stored form. What it returns makes a valid request.
func decode(payload []byte) (*capture, error) {
	fail := func(format string, args ...any) (*capture, error) {
		return nil, fmt.Errorf("httplock: decode a parked request: "+format, args...)
	}
	line, content, found := bytes.Cut(payload, []byte{'\n'})
	if !found {
		return fail("no line of JSON in front of the body")
	}
	c := &capture{}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(c); err != nil {
		return fail("%w", err)
	}
	if c.Version != captureVersion {
		return fail("version %d, want %d", c.Version, captureVersion)
	}
	if len(bytes.TrimSpace(line[decoder.InputOffset():])) > 0 {
		return fail("more than one JSON value in its head")
	}
	var err error
	if c.Target, err = narrow(c.Target); err != nil {
		return fail("target: %w", err)
	}
	if !isToken(c.Method) || c.Method == http.MethodConnect {
		return fail("method %q", c.Method)
	}
	if _, err := c.url(); err != nil {
		return fail("%w", err)
	}
	for name, values := range c.Header {
		if !isToken(name) || textproto.CanonicalMIMEHeaderKey(name) != name || neverStored[name] {
			return fail("header %q", name)
		}
		for i := range values {
			if values[i], err = narrow(values[i]); err != nil || !isFieldValue(values[i]) {
				return fail("value of header %q", name)
			}
		}
	}
	c.body = content
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

var errNotByte = errors.New("a character that stands for no byte")

// widen turns each byte into the character of that number, which JSON keeps.
// ASCII stays as it is.
func widen(s string) string {
	if isASCII(s) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

// narrow undoes widen.
func narrow(s string) (string, error) {
	if isASCII(s) {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return "", errNotByte
		}
		b = append(b, byte(r))
	}
	return string(b), nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
