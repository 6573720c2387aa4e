// Package method knows the methods of HTTP that perkey treats in a way of their own; see IANA's Hypertext Transfer Protocol Method
// Registry.
package method

import (
	"net/http"
	"slices"
)

// Reading are the safe methods that read what other methods change. Query is of RFC 10008, the others of WebDAV.
var Reading = []string{http.MethodGet, http.MethodHead, "QUERY", "PROPFIND", "REPORT", "SEARCH"}

// All are those that have names of their own.
var All = slices.Concat(Reading[:2], []string{
	http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
}, Reading[2:])

// IsSafe reports whether a request with that method asks for no change.
func IsSafe(method string) bool {
	return method == http.MethodOptions || slices.Contains(Reading, method)
}
