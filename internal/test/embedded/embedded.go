// Package embedded runs a Redis inside the process, for demos and tests.
package embedded

import (
	"fmt"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Server is a Redis in this process, on a free loopback port. Close it.
type Server struct {
	*miniredis.Miniredis

	once sync.Once
}

// Start starts a Server.
func Start() (*Server, error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("embedded: start redis: %w", err)
	}
	m.ClockTTL(true)
	return &Server{Miniredis: m}, nil
}

// Connect starts a Server, for an example, and returns a client of it. It panics if it cannot.
func Connect() (rdb *redis.Client, closeBoth func()) {
	s, err := Start()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: s.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		s.Close()
	}
}

// Close stops the server. It may be called twice.
func (s *Server) Close() { s.once.Do(s.Miniredis.Close) }
