package testbed

import (
	"bytes"
	"log"
	"log/slog"
	"sync"
	"testing"
)

// Log is what was logged. The zero Log is empty. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	out bytes.Buffer
}

// CaptureLog has slog's default logger write to the Log until the end of the test, which must not be parallel.
func CaptureLog(t testing.TB) *Log {
	t.Helper()
	l := &Log{}
	before, flags, writer := slog.Default(), log.Flags(), log.Writer()
	slog.SetDefault(l.Logger())
	t.Cleanup(func() { // SetDefault redirects package log, and does not undo that
		slog.SetDefault(before)
		log.SetFlags(flags)
		log.SetOutput(writer)
	})
	return l
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
