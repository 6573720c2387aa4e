package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// honoring is a policy that honors bounds, and says what it was asked for.
type honoring struct{ asked *core.Preference }

func (p honoring) Honors(prefers core.Preference) core.Preference {
	prefers.Async = false
	return prefers
}

func (p honoring) OnConflict(_ context.Context, c core.Conflict) (core.Decision, error) {
	*p.asked = c.Call.Prefer
	return core.Reject(), nil
}

func TestPreference_PoliciesSeeThePreference(t *testing.T) {
	l := newLocker(t, redistest.Embedded(t))
	lease := testbed.Take(t, l, "k")
	defer func() { _ = lease.Release(t.Context()) }()
	prefers := core.Preference{Bounded: true, Wait: time.Second, Async: true}
	var asked core.Preference
	guard := l.Guard(honoring{&asked})
	err := guard.Do(t.Context(), core.Call{Key: "k", Prefer: prefers}, nothing)
	require.ErrorIs(t, err, core.ErrConflict)
	require.Equal(t, prefers, asked)
	require.Equal(t, core.Preference{Bounded: true, Wait: time.Second}, guard.Honors(prefers))
	require.Zero(t, l.Guard(core.RejectConflicts).Honors(prefers))
}

func TestExclusiveGuards(t *testing.T) {
	l := newLocker(t, redistest.Embedded(t))
	for exclusive, guards := range map[bool][]*core.Guard{
		true:  {l.Guard(core.RejectConflicts), l.Guard(core.RejectConflicts, core.Counted(1))},
		false: {l.Guard(core.RejectConflicts, core.Counted(2)), l.Guard(nil, core.Shared()), (*core.Locker)(nil).Guard(nil), nil},
	} {
		for _, guard := range guards {
			require.Equal(t, exclusive, guard.Exclusive())
		}
	}
}
