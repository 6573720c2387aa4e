package asynqlock_test

import (
	"bytes"
	"log/slog"
	"sync"

	"github.com/redis/go-redis/v9"
)

// log is a logger whose lines can be read while it is written to.
type log struct {
	logger *slog.Logger
	mu     sync.Mutex
	lines  bytes.Buffer
}

func newLog() *log {
	l := &log{}
	l.logger = slog.New(slog.NewTextHandler(l, nil))
	return l
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

func redisAt(addr string) *redis.Options { return &redis.Options{Addr: addr, MaxRetries: -1} }
