// Package embedded runs a Redis inside the process, for demos and tests.
package embedded

import (
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// tick is how often the server's clock moves: its keys expire only then. A key that was set between two ticks
// is a whole tick older after the second, and may expire too early by that.
const tick = 10 * time.Millisecond

// Server is a Redis in this process, on a free loopback port. Close it.
type Server struct {
	*miniredis.Miniredis

	stop chan struct{}
	done sync.WaitGroup
	once sync.Once
}

// Start starts a Server.
func Start() (*Server, error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("embedded: start redis: %w", err)
	}
	s := &Server{Miniredis: m, stop: make(chan struct{})}
	s.done.Go(s.tick)
	return s, nil
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

// Close stops the server and waits for its goroutines. It may be called twice.
func (s *Server) Close() {
	s.once.Do(func() {
		close(s.stop)
		s.done.Wait()
		s.Miniredis.Close()
	})
}

func (s *Server) tick() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-s.stop:
			return
		case now := <-ticker.C:
			// A late tick moves the clock by two ticks at most: otherwise a key that was set just before
			// it would expire too early by as much as the tick is late. Whole milliseconds, as PTTL has them: else a
			// script that keeps an expiry as it is would shorten it.
			passed := now.Sub(last).Truncate(time.Millisecond)
			s.FastForward(min(passed, 2*tick))
			last = last.Add(passed)
		}
	}
}
