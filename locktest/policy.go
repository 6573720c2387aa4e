package locktest

import (
	"context"
	"slices"
	"sync"

	"github.com/perkey-go/perkey/core"
)

// Policy is a core.ConflictPolicy that decides as it was told, and remembers each conflict
// that it was asked about. The zero Policy rejects. It is used by its address, and is safe
// for concurrent use; its fields are set before the first conflict.
type Policy struct {
	// Decisions are given one after the other, whichever calls ask.
	Decisions []core.Decision
	// Then decides when all Decisions were given: a policy under test, perhaps. Nil:
	// the call is rejected.
	Then core.ConflictPolicy

	mu        sync.Mutex
	conflicts []core.Conflict
}

// OnConflict implements core.ConflictPolicy.
func (p *Policy) OnConflict(ctx context.Context, c core.Conflict) (core.Decision, error) {
	p.mu.Lock()
	n := len(p.conflicts)
	p.conflicts = append(p.conflicts, c)
	p.mu.Unlock()
	switch {
	case n < len(p.Decisions):
		return p.Decisions[n], nil
	case p.Then != nil:
		return p.Then.OnConflict(ctx, c)
	default:
		return core.Reject(), nil
	}
}

// Validate reports what Then, if it is a core.Validator, finds wrong with itself.
func (p *Policy) Validate() error {
	if v, ok := p.Then.(core.Validator); ok {
		return v.Validate()
	}
	return nil
}

// Honors returns the part of a preference that Then honors: by this httplock knows whether requests may be parked.
func (p *Policy) Honors(prefers core.Preference) core.Preference {
	return core.Honored(p.Then, prefers)
}

// Conflicts returns the conflicts so far, in their order.
func (p *Policy) Conflicts() []core.Conflict {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.conflicts)
}

// RequireConflicts fails the test unless there were n conflicts at least, or are within ten
// seconds.
func (p *Policy) RequireConflicts(t TB, n int) {
	t.Helper()
	if done, _ := eventually(func(context.Context) (bool, error) { return len(p.Conflicts()) >= n, nil }); !done {
		t.Fatalf("locktest: require %d conflicts: there were %d", n, len(p.Conflicts()))
	}
}
