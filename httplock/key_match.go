package httplock

import (
	"context"
	"iter"
	"net/http"
	"sync"
)

// Match is what a framework's router found for a request. It is for adapters: a
// KeyFunc knows net/http alone, and Match tells it the rest in net/http's terms.
type Match struct {
	// Pattern is the route, as the framework writes it: "/orders/:id". Empty: none.
	Pattern string
	// Params are the path parameters as the router has them, by name. Percent-encoding that it left
	// in them is undone, which is known from the pattern and the request's path; where it is not, the
	// request is refused with 400. Nil: none.
	Params iter.Seq2[string, string]
	// Context is the context that the key function sees, which should be derived
	// from the request's. Nil: the request's own.
	Context context.Context
}

// Key asks key for the key of r. The key function gets a copy of r that has the
// match's Pattern, PathValue and Context. What it read of the body, and what it left
// in the body's place, are in r afterwards; the rest of r is as it was. A nil key is an
// error of ours.
func (m Match) Key(key KeyFunc, r *http.Request) (string, error) {
	if key == nil {
		key = incomplete
	}
	seen, err := m.request(r)
	if err != nil {
		return "", err
	}
	defer func() {
		r.Body, r.ContentLength = seen.Body, seen.ContentLength
		r.Form, r.PostForm, r.MultipartForm = seen.Form, seen.PostForm, seen.MultipartForm
	}()
	return key(seen)
}

// request is r as the key function sees it. Clone keeps apart the path values that a
// router in front may have left in r, and what it would copy deeply is shared.
func (m Match) request(r *http.Request) (*http.Request, error) {
	ctx := m.Context
	if ctx == nil {
		ctx = r.Context()
	}
	made := matches.Get().(*matching)
	defer made.recycle()
	bare := &made.bare
	*bare = *r
	bare.URL, bare.Header, bare.Trailer, bare.TransferEncoding = nil, nil, nil, nil
	bare.Form, bare.PostForm, bare.MultipartForm = nil, nil, nil
	seen := bare.Clone(ctx)
	seen.URL, seen.Header, seen.Trailer, seen.TransferEncoding = r.URL, r.Header, r.Trailer, r.TransferEncoding
	seen.Form, seen.PostForm, seen.MultipartForm = r.Form, r.PostForm, r.MultipartForm
	seen.Pattern = m.Pattern
	if m.Params != nil {
		m.Params(made.add)
		if err := decodeParams(m.Pattern, made.params, r); err != nil {
			return nil, err
		}
		for _, p := range made.params {
			seen.SetPathValue(p.name, p.value)
		}
	}
	return seen, nil
}

// matching is what Match.request needs for a while.
type matching struct {
	bare   http.Request
	params []pathParam
	add    func(name, value string) bool // to params
}

var matches = sync.Pool{New: func() any {
	m := &matching{}
	m.add = func(name, value string) bool {
		m.params = append(m.params, pathParam{name, value})
		return true
	}
	return m
}}

func (m *matching) recycle() {
	m.bare = http.Request{}
	clear(m.params)
	m.params = m.params[:0]
	matches.Put(m)
}
