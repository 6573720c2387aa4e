// Package throttle makes a Redis as slow as is asked for, so that what it can do is known.
package throttle

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"
)

// Server is what the connections of a client share: it takes requests one after the other, and as long for each, or for each key of a lock.
type Server struct {
	mu    sync.Mutex
	takes time.Duration
	busy  time.Time // until then
}

// Takes sets how long a request takes.
func (s *Server) Takes(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = d
}

// Dialer returns dial with connections that hold requests back until the server has come to them.
func (s *Server) Dialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return throttled{conn, s}, nil
	}
}

type throttled struct {
	net.Conn
	server *Server
}

func (c throttled) Write(piece []byte) (int, error) {
	requests := bytes.Count(piece, []byte("\r\n*"))
	if bytes.HasPrefix(piece, []byte("*")) {
		requests++
	}
	requests = max(requests, bytes.Count(piece, []byte(":lock{}:"))) // a call may be for the keys of many callers
	s := c.server
	s.mu.Lock()
	if now := time.Now(); s.busy.Before(now) {
		s.busy = now
	}
	s.busy = s.busy.Add(time.Duration(requests) * s.takes)
	due := s.busy
	s.mu.Unlock()
	time.Sleep(time.Until(due))
	return c.Conn.Write(piece)
}
