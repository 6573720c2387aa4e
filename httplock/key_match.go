package httplock

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"sync"
)

// Match is what a framework's router found for a request. It is for adapters: a KeyFunc knows
// net/http alone, and Match provides the rest in net/http's terms.
type Match struct {
	// Pattern is the route, as the framework writes it: "/orders/:id". Empty: none.
	Pattern string
	// Params are the path parameters as the router has them, by name. Percent-encoding that it left
	// in them is decoded; whether it did is seen from the pattern and the request's path, and where
	// it cannot be seen the request is refused with 400. Nil: none.
	Params iter.Seq2[string, string]
	// Framework is the framework's context, or whatever the adapter's own key functions look
	// for by FrameworkFrom. It may be nil.
	Framework any
}

// Key returns the key that key makes of r. The key function gets a copy of r that has the match's Pattern and
// PathValue, and the Framework in its context. What it read of the body, and what it left in the body's
// place, are in r afterwards; the rest of r is unchanged. A nil key is an error.
func (m Match) Key(key KeyFunc, r *http.Request) (string, error) {
	if key == nil {
		key = incomplete
	}
	made := matches.Get().(*matching)
	defer made.recycle()
	if m.Params != nil {
		m.Params(made.add)
		if err := decodeParams(m.Pattern, made.params, r); err != nil {
			return "", err
		}
	}
	if isParam(key) {
		return key(made.shared(m.Pattern, r))
	}
	seen := made.copied(&m, r)
	defer putBack(r, seen, *r)
	return key(seen)
}

// matching is what Match.Key needs for a while. It is the ctx of a request that is shared.
type matching struct {
	context.Context // the request's
	bare            http.Request
	params          []pathParam
	add             func(name, value string) bool // to params
}

// isParam reports whether key is one of Param, ParamInt or ParamUUID: it keeps nothing of its request.
func isParam(key KeyFunc) bool { return reflect.ValueOf(key).Pointer() == paramCode }

var paramCode = reflect.ValueOf((&param{}).key).Pointer()

// shared is r as a param sees it. It is used again, and its path values may be those of a router in front: the match's are in made.
func (made *matching) shared(pattern string, r *http.Request) *http.Request {
	made.Context = r.Context()
	made.bare = *r.WithContext(made)
	made.bare.Pattern = pattern
	return &made.bare
}

// pathValue is a path parameter of r: that of the match, if r is shared and the match has it.
func pathValue(r *http.Request, name string) string {
	if made, is := r.Context().(*matching); is {
		for _, p := range slices.Backward(made.params) {
			if p.name == name {
				return p.value
			}
		}
	}
	return r.PathValue(name)
}

// copied is r as any other key function sees it. Clone keeps apart the path values that a
// router in front may have left in r, and what it would copy deeply is shared.
func (made *matching) copied(m *Match, r *http.Request) *http.Request {
	ctx := r.Context()
	if m.Framework != nil {
		ctx = context.WithValue(ctx, frameworkKey{}, m.Framework)
	}
	bare := &made.bare
	*bare = *r
	bare.URL, bare.Header, bare.Trailer, bare.TransferEncoding = nil, nil, nil, nil
	bare.Form, bare.PostForm, bare.MultipartForm = nil, nil, nil
	seen := bare.Clone(ctx)
	seen.URL, seen.Header, seen.Trailer, seen.TransferEncoding = r.URL, r.Header, r.Trailer, r.TransferEncoding
	seen.Form, seen.PostForm, seen.MultipartForm = r.Form, r.PostForm, r.MultipartForm
	seen.Pattern = m.Pattern
	for _, p := range made.params {
		seen.SetPathValue(p.name, p.value)
	}
	return seen
}

var matches = sync.Pool{New: func() any {
	made := &matching{}
	made.add = func(name, value string) bool {
		made.params = append(made.params, pathParam{name, value})
		return true
	}
	return made
}}

func (made *matching) recycle() {
	made.Context, made.bare = nil, http.Request{}
	clear(made.params)
	made.params = made.params[:0]
	matches.Put(made)
}

// putBack has r show what a function did to the body and the form of its copy. What it left there as it was before may have been
// changed in r itself, which frameworks show too.
func putBack(r, seen *http.Request, before http.Request) {
	if !reflect.ValueOf(seen.Body).Comparable() || seen.Body != before.Body {
		r.Body = seen.Body
	}
	if seen.ContentLength != before.ContentLength {
		r.ContentLength = seen.ContentLength
	}
	if !isSameMap(seen.Form, before.Form) {
		r.Form = seen.Form
	}
	if !isSameMap(seen.PostForm, before.PostForm) {
		r.PostForm = seen.PostForm
	}
	if seen.MultipartForm != before.MultipartForm {
		r.MultipartForm = seen.MultipartForm
	}
}

func isSameMap(a, b url.Values) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}
