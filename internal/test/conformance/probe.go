package conformance

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

// probe is a testing.TB that keeps failures, in place of failing a test. What it
// does not override is the test's that it is a part of.
type probe struct {
	testing.TB
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	failed   bool
	failures []string
	cleanups []func()
}

func newProbe(t testing.TB) *probe {
	t.Helper()
	p := &probe{TB: t}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// run calls f on a goroutine of its own, which FailNow can end.
func (p *probe) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				p.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		f()
	}()
	<-done
}

// close ends the ctx, cleans up, and returns what failed.
func (p *probe) close() []string {
	p.cancel()
	for f := p.lastCleanup(); f != nil; f = p.lastCleanup() {
		p.run(f)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed && len(p.failures) == 0 {
		return []string{"failed"}
	}
	return slices.Clone(p.failures) // a goroutine that the check left behind may still fail
}

// lastCleanup takes the last cleanup, or returns nil.
func (p *probe) lastCleanup() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.cleanups)
	if n == 0 {
		return nil
	}
	f := p.cleanups[n-1]
	p.cleanups = p.cleanups[:n-1]
	return f
}

func (p *probe) Helper()                  {}
func (p *probe) Context() context.Context { return p.ctx }
func (p *probe) Log(...any)               {}
func (p *probe) Logf(string, ...any)      {}

func (p *probe) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *probe) Fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
}

func (p *probe) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *probe) FailNow() {
	p.Fail()
	runtime.Goexit()
}

func (p *probe) Error(args ...any) { p.Errorf("%s", fmt.Sprintln(args...)) }

func (p *probe) Errorf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
	text := strings.TrimSpace(fmt.Sprintf(format, args...))
	p.failures = append(p.failures, trace.ReplaceAllString(text, "$1$2"))
}

// trace is testify's stack, of which the first line is worth reading.
var trace = regexp.MustCompile(`(?s)(Error Trace:[^\n]*)\n.*?(\n\s*Error:)`)

func (p *probe) Fatal(args ...any) {
	p.Error(args...)
	p.FailNow()
}

func (p *probe) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	p.FailNow()
}
