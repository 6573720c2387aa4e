package console

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	refresh    = 2 * time.Second // of a page that is open
	maxStreams = 500
	streamTime = 5 * time.Minute // then the browser asks again, and what is before the console can refuse it
	writeTime  = 10 * time.Second
)

// streams ends with their server, so that its Shutdown need not wait for pages that are open.
type streams struct {
	open atomic.Int64

	mu      sync.Mutex
	servers map[*http.Server]chan struct{}
}

// over is closed when the request's server is shut down.
func (s *streams) over(r *http.Request) <-chan struct{} {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done, ok := s.servers[server]
	if !ok {
		if s.servers == nil {
			s.servers = map[*http.Server]chan struct{}{}
		}
		done = make(chan struct{})
		s.servers[server] = done
		server.RegisterOnShutdown(func() { close(done) }) // it stays known, for requests that come yet
	}
	return done
}

// stream keeps a page up to date: it sends its main part every 2 s, and when something happens to a key that is watched, as a server-sent event, as long as its reader may see it.
func (c *console) stream(w http.ResponseWriter, r *http.Request, who string, show func(*http.Request) (*page, error)) {
	if c.streams.open.Add(1) > maxStreams {
		c.streams.open.Add(-1)
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	defer c.streams.open.Add(-1)
	over := c.streams.over(r)
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep it back
	tick, end := time.NewTicker(refresh), time.NewTimer(streamTime)
	defer tick.Stop()
	defer end.Stop()
	for first := true; ; first = false {
		if !first && !c.allowed(r, View) {
			return
		}
		p, err := c.read(r, who, show)
		if err != nil || p.Quiet {
			return
		}
		var b bytes.Buffer
		if err := c.templates[p.Name].ExecuteTemplate(&b, "main", p); err != nil {
			return
		}
		event := fmt.Appendf(nil, "data: %s\nretry: 1000\n\n", bytes.ReplaceAll(b.Bytes(), []byte("\n"), []byte("\ndata: ")))
		if err := out.SetWriteDeadline(time.Now().Add(writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return
		}
		if _, err := w.Write(event); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-p.Changed:
			select { // for what comes with it
			case <-time.After(burst):
			case <-r.Context().Done():
				return
			}
		case <-end.C:
			return
		case <-over:
			return
		case <-r.Context().Done():
			return
		}
	}
}
