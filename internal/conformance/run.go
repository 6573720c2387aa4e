package conformance

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/redistest"
)

// Run checks every behaviour of a, each in subtests on the embedded Redis and on a
// real one. A behaviour that a's framework cannot have is skipped, with the reason.
//
// Call it from a test named TestConformance: make conformance looks for that.
func Run(t *testing.T, a Adapter) {
	t.Helper()
	require.NoError(t, a.validate())
	t.Run(a.Name, func(t *testing.T) {
		for _, b := range behaviours {
			t.Run(b.name, func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, env *redistest.Env) {
					switch r := b.check(t, env, a, 15*time.Second); r.Outcome {
					case Failed:
						t.Error(r.Text)
					case Lacking:
						t.Skip(r.Text)
					case Passed:
					}
				})
			})
		}
	})
}

// Check checks the named behaviours of a, or all of them, and fails no test: what
// comes out is in the Results. t's Redis is on env. It is for tests of the suite.
func Check(t testing.TB, env *redistest.Env, a Adapter, names ...string) []Result {
	t.Helper()
	require.NoError(t, a.validate())
	chosen := map[string]bool{}
	for _, name := range names {
		chosen[name] = true
	}
	var results []Result
	for _, b := range behaviours {
		if len(names) == 0 || chosen[b.name] {
			results = append(results, b.check(t, env, a, 5*time.Second))
			delete(chosen, b.name)
		}
	}
	require.Empty(t, chosen, "no such behaviours")
	return results
}

// Names lists the behaviours.
func Names() []string {
	var names []string
	for _, b := range behaviours {
		names = append(names, b.name)
	}
	return names
}

// Result is what came out of one behaviour's check.
type Result struct {
	Behaviour string
	Outcome   Outcome
	// Text says what failed, or why the behaviour is lacking.
	Text string
}

// Outcome is one of the following.
type Outcome int

// The outcomes.
const (
	Passed  Outcome = iota
	Failed          // the behaviour is not as it should be
	Lacking         // the framework cannot have it
)

// behaviour is something that adapters promise.
type behaviour struct {
	name  string
	needs Capability // empty: any framework can
	test  func(*trial)
}

func (b behaviour) check(t testing.TB, env *redistest.Env, a Adapter, patience time.Duration) Result {
	if why, lacks := a.Lacks[b.needs]; lacks {
		return Result{b.name, Lacking, why}
	}
	p := newProbe(t)
	p.run(func() { b.test(&trial{TB: p, env: env, adapter: a, patience: patience}) })
	if failures := p.close(); len(failures) > 0 {
		return Result{b.name, Failed, strings.Join(failures, "\n")}
	}
	return Result{Behaviour: b.name, Outcome: Passed}
}

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
	for {
		p.mu.Lock()
		n := len(p.cleanups)
		if n == 0 {
			defer p.mu.Unlock()
			if p.failed && len(p.failures) == 0 {
				return []string{"failed"}
			}
			return p.failures
		}
		f := p.cleanups[n-1]
		p.cleanups = p.cleanups[:n-1]
		p.mu.Unlock()
		p.run(f)
	}
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
