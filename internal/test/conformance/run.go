package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// Run checks every behaviour of a, each in subtests, on the Redis of this run: see [redistest.ChoiceVar]. A behaviour
// that a's framework cannot have is skipped, with the reason.
//
// Call it from a test named TestConformance: make conformance looks for that.
func Run(t *testing.T, a Adapter) {
	t.Helper()
	require.NoError(t, a.validate())
	t.Run(a.Name, func(t *testing.T) {
		for _, b := range behaviours {
			t.Run(b.name, func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, env *redistest.Env) {
					switch r := b.check(t, env, a, time.Minute); r.Outcome {
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
	test  func(*fixture)
}

func (b behaviour) check(t testing.TB, env *redistest.Env, a Adapter, timeout time.Duration) Result {
	t.Helper()
	if why, lacks := a.Lacks[b.needs]; lacks {
		return Result{b.name, Lacking, why}
	}
	p, said := newProbe(t), &testbed.Log{}
	p.run(func() { b.test(&fixture{TB: p, env: env, adapter: a.logging(said), said: said, timeout: timeout}) })
	if failures := p.close(); len(failures) > 0 {
		return Result{b.name, Failed, strings.Join(append(failures, begin(said.String())), "\n")}
	}
	return Result{Behaviour: b.name, Outcome: Passed}
}

// begin is what the guards logged, or enough of it to see why.
func begin(log string) string {
	const most = 2000
	switch {
	case log == "":
		return "The guards logged nothing."
	case len(log) > most:
		log = log[:most] + "…"
	}
	return "The guards logged:\n" + log
}
