package httplock

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// routed has a key function see the path parameters as they read. http.ServeMux decodes them; another router of net/http,
// such as chi, may not.
func routed(key KeyFunc) KeyFunc {
	if key == nil {
		return incomplete
	}
	return func(r *http.Request) (string, error) {
		if !strings.Contains(r.URL.EscapedPath(), "%") {
			return key(r)
		}
		return Match{Pattern: r.Pattern, Params: func(yield func(name, value string) bool) {
			for _, name := range PatternParams(r.Pattern) {
				if !yield(name, r.PathValue(name)) {
					return
				}
			}
		}}.Key(key, r)
	}
}

// pathParam is a path parameter as a router has it.
type pathParam struct{ name, value string }

// errAmbiguousPath: a path parameter may be encoded, or not.
var errAmbiguousPath = errors.New("a path parameter has a %, and nothing tells whether the router has decoded it: the path or the pattern was changed, or is unknown")

// decodeParams undoes the percent-encoding of path parameters, if the router left it in. It did if the pattern with the
// values in the parameters' places is the path as it was sent. Where it is neither that nor the path as it reads, since
// somebody has changed the path or the pattern, a value that may be encoded is an error.
func decodeParams(pattern string, params []pathParam, r *http.Request) error {
	if !slices.ContainsFunc(params, func(p pathParam) bool { return strings.Contains(p.value, "%") }) {
		return nil
	}
	matched := fill(pattern, params)
	is := func(of func(*url.URL) string) bool {
		sent, err := url.ParseRequestURI(r.RequestURI) // before a prefix was stripped
		return matched == segments(of(r.URL)) || err == nil && matched == segments(of(sent))
	}
	encoded := is((*url.URL).EscapedPath)
	if !encoded {
		if is(func(u *url.URL) string { return u.Path }) {
			return nil
		}
		return BadKey(errAmbiguousPath)
	}
	for i, p := range params {
		value, err := url.PathUnescape(p.value)
		if err != nil {
			return BadKey(errAmbiguousPath)
		}
		params[i].value = value
	}
	return nil
}

// fill returns the segments of the path that makes a router find the parameters.
func fill(pattern string, params []pathParam) string {
	var path strings.Builder
	for part := range patternParts(pattern) {
		if part.name == "" {
			path.WriteString(strings.ReplaceAll(part.text, `\:`, ":"))
		} else if i := slices.IndexFunc(params, func(p pathParam) bool { return p.name == part.name }); i >= 0 {
			path.WriteString(params[i].value)
		}
	}
	s := strings.TrimSuffix(path.String(), "{$}")
	return segments(s[max(strings.IndexByte(s, '/'), 0):]) // without a host
}

// segments is a path without the slashes that routers add and leave out: at its ends, and where there are several in a row.
func segments(path string) string {
	return strings.Join(strings.FieldsFunc(path, func(c rune) bool { return c == '/' }), "/")
}
