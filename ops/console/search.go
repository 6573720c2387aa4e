package console

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
)

const (
	maxSearches = 2 // at a time
	searchTime  = 40 * time.Second
	shownFound  = 200
	searchCount = 100 // keys of a page of List: some 1,000 names
)

// searchBody is a search for keys by their beginning.
type searchBody struct {
	Prefix      string
	Found       []*core.KeyInfo
	Count       int
	Took        time.Duration
	Next        string // where it goes on
	More, Ended bool
	Err         error
}

// search sends what it finds while it looks. It ends when the browser leaves, which is what its link back does, when a
// page is full, or after some time: then it can be taken up again.
func (c *console) search(w http.ResponseWriter, r *http.Request, who string) {
	ask := r.URL.Query()
	p, err := c.read(r, who, c.keys)
	if err != nil {
		c.refuse(w, err)
		return
	}
	prefix, err := c.names.of(ask.Get("prefix"))
	if err != nil {
		c.refuse(w, err)
		return
	}
	s := &searchBody{Prefix: prefix, Next: ask.Get("cursor")}
	body := p.Body.(keysBody)
	body.Search = s
	p.Body, p.Quiet, p.Name, p.Title = body, true, "search", "Search"
	select {
	case c.searches <- struct{}{}:
		defer func() { <-c.searches }()
	default:
		c.refuse(w, &httpError{http.StatusTooManyRequests, "Others search already. Try again when they have ended."})
		return
	}
	began := time.Now()
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no")
	send := func(part string, with any) bool {
		_ = out.SetWriteDeadline(time.Now().Add(writeTime)) // who cannot keep has the server's
		if err := c.templates["search"].ExecuteTemplate(w, part, with); err != nil {
			return false
		}
		_ = out.Flush() // who cannot sends all at the end
		return true
	}
	if !send("search-head", p) {
		return
	}
	for !s.Ended && !s.More && s.Err == nil {
		s.next(r.Context(), c.Locker)
		if r.Context().Err() != nil || s.Err == nil && !send("search-rows", s) {
			return
		}
		s.Count, s.Took = s.Count+len(s.Found), time.Since(began)
		s.More = !s.Ended && (s.Count >= shownFound || s.Took > searchTime)
	}
	_ = send("search-foot", p)
}

// next looks at more keys.
func (s *searchBody) next(ctx context.Context, locker *core.Locker) {
	s.Found = s.Found[:0]
	page, err := locker.List(ctx, s.Next, searchCount)
	if s.Err = err; err != nil {
		return
	}
	for _, k := range page.Keys {
		if strings.HasPrefix(k.Key, s.Prefix) {
			s.Found = append(s.Found, k)
		}
	}
	s.Next, s.Ended = page.Next, page.Next == ""
}
