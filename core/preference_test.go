package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
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
	lease, err := l.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	defer func() { _ = lease.Release(t.Context()) }()
	prefers := core.Preference{Bounded: true, Wait: time.Second, Async: true}
	var asked core.Preference
	guard := l.Guard(honoring{&asked})
	err = guard.Do(t.Context(), core.Call{Key: "k", Prefer: prefers}, func(context.Context) error { return nil })
	require.ErrorIs(t, err, core.ErrConflict)
	require.Equal(t, prefers, asked)
	require.Equal(t, core.Preference{Bounded: true, Wait: time.Second}, guard.Honors(prefers))
	require.Zero(t, l.Guard(core.RejectConflicts).Honors(prefers))
}

func TestExclusiveGuards(t *testing.T) {
	l := newLocker(t, redistest.Embedded(t))
	require.True(t, l.Guard(core.RejectConflicts).Exclusive())
	require.True(t, l.Guard(core.RejectConflicts, core.Counted(1)).Exclusive())
	require.False(t, l.Guard(core.RejectConflicts, core.Counted(2)).Exclusive())
	require.False(t, l.Guard(core.RejectConflicts, core.Shared()).Exclusive())
	require.False(t, (*core.Locker)(nil).Guard(core.RejectConflicts).Exclusive())
	require.False(t, (*core.Guard)(nil).Exclusive())
}
