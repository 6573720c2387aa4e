package httplock

import (
	"cmp"
	"errors"
	"net/url"
	"strings"
)

var errAmbiguousPath = errors.New("its percent-encoding can be read in two ways")

// plainValue undoes the percent-encoding of a path parameter, if the router left it in. Routers
// do not say whether they did, and to undo it twice would make another value of it; so it
// is looked for in the path as it was sent, and as it reads. A path that has the value in
// both forms, as a client may write one, is refused: there is no telling which is meant.
//
// What it returns stays the same if it is given to it again.
func plainValue(u *url.URL, value string) (string, error) {
	if u == nil || !strings.Contains(value, "%") {
		return value, nil
	}
	sent := cmp.Or(u.RawPath, u.EscapedPath())
	encoded, plain := hasSegments(sent, value), hasSegments(u.Path, value)
	switch {
	case encoded && plain:
		return "", errAmbiguousPath
	case !encoded && !plain: // a part of a segment, or of another path
		encoded = strings.Contains(sent, value) && !strings.Contains(u.Path, value)
	}
	if encoded {
		if decoded, err := url.PathUnescape(value); err == nil {
			return decoded, nil
		}
	}
	return value, nil
}

// hasSegments reports whether a path has a segment, or some in a row, that read so.
func hasSegments(path, segments string) bool {
	return strings.Contains(path+"/", "/"+strings.Trim(segments, "/")+"/")
}
