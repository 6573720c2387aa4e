package testbed

import (
	"bytes"
	"log/slog"
	"sync"
)

// Log is what was logged. The zero Log is empty. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	out bytes.Buffer
}

// Logger returns a logger that writes everything to the Log.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

// String returns what was logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}
