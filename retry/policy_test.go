package retry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/retry"
)

func TestDecisions(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	then := fixed(core.Deferred(core.Ticket{ID: "next"}))
	for _, c := range []struct {
		name     string
		policy   retry.Policy
		conflict core.Conflict
		min, max time.Duration // of the delay
		want     string
	}{
		{"first", retry.Policy{}, core.Conflict{Attempt: 1}, 1, 20 * ms, "retry"},
		{"second doubles", retry.Policy{}, core.Conflict{Attempt: 2}, 1, 40 * ms, "retry"},
		{"never past Max", retry.Policy{}, core.Conflict{Attempt: 1000}, 1, 500 * ms, "retry"},
		{"Initial above the default Max", retry.Policy{Initial: time.Second}, core.Conflict{Attempt: 9}, 1, time.Second, "retry"},
		{"a Max below the default Initial", retry.Policy{Max: ms}, core.Conflict{Attempt: 9}, 1, ms, "retry"},
		{"decorrelated first", retry.Policy{Jitter: retry.DecorrelatedJitter}, core.Conflict{Attempt: 1}, 20 * ms, 60 * ms, "retry"},
		{"decorrelated next", retry.Policy{Jitter: retry.DecorrelatedJitter}, core.Conflict{Attempt: 2, LastDelay: 50 * ms}, 20 * ms, 150 * ms, "retry"},
		{"decorrelated, never past Max", retry.Policy{Jitter: retry.DecorrelatedJitter}, core.Conflict{Attempt: 2, LastDelay: time.Hour}, 20 * ms, 500 * ms, "retry"},
		{"the last wait ends with MaxWait", retry.Policy{}, core.Conflict{Attempt: 9, Waited: 2*time.Second - ms}, 1, ms, "retry"},
		{"MaxWait is over", retry.Policy{}, core.Conflict{Attempt: 2, Waited: 2 * time.Second}, 0, 0, "reject"},
		{"MaxAttempts are made", retry.Policy{MaxAttempts: 3}, core.Conflict{Attempt: 3}, 0, 0, "reject"},
		{"MaxAttempts are not", retry.Policy{MaxAttempts: 3}, core.Conflict{Attempt: 2}, 1, 40 * ms, "retry"},
		{"Then", retry.Policy{MaxAttempts: 1, Then: then}, core.Conflict{Attempt: 1}, 0, 0, "deferred"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for range 200 {
				d, err := c.policy.OnConflict(t.Context(), c.conflict)
				require.NoError(t, err)
				require.Equal(t, c.want, d.String())
				delay, _ := d.Delay()
				require.GreaterOrEqual(t, delay, c.min)
				require.LessOrEqual(t, delay, c.max)
			}
		})
	}
}

func TestPolicy_ADeadlineThatWaitingWouldMissEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		policy := retry.Policy{Initial: time.Second, Max: time.Second, MaxWait: time.Minute, Jitter: retry.DecorrelatedJitter}
		d, err := policy.OnConflict(ctx, core.Conflict{Attempt: 1})
		require.NoError(t, err)
		require.Equal(t, "reject", d.String())
		d, err = policy.OnConflict(t.Context(), core.Conflict{Attempt: 1})
		require.NoError(t, err)
		require.Equal(t, "retry", d.String())
	})
}

func TestPolicy_FieldsThatCannotWorkAreErrors(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]retry.Policy{
		"Initial": {Initial: -1}, "Max": {Max: -1}, "MaxWait": {MaxWait: -1}, "MaxAttempts": {MaxAttempts: -1},
		"Initial over Max": {Initial: 2 * time.Second, Max: time.Second}, "Initial without a unit": {Initial: 20},
		"MaxWait without a unit": {MaxWait: 2}, "nil Then": {Then: (*retry.Policy)(nil)}, "Jitter": {Jitter: 7}, "Then": {Then: retry.Policy{Max: -1}},
	} {
		require.ErrorIs(t, p.Validate(), core.ErrInvalidOption, name)
		require.ErrorContains(t, p.Validate(), "Policy.", name)
		_, err := p.OnConflict(t.Context(), core.Conflict{Attempt: 1})
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
	}
	require.NoError(t, retry.Policy{}.Validate())
}

type fixed core.Decision

func (f fixed) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Decision(f), nil
}

// parks is a policy that defers, and says so.
type parks struct{ core.ConflictPolicy }

func (parks) Honors(p core.Preference) core.Preference { return core.Preference{Async: p.Async} }

func TestPreferences(t *testing.T) {
	t.Parallel()
	s := time.Second
	deferred := fixed(core.Deferred(core.Ticket{ID: "next"}))
	encode := func() ([]byte, error) { return nil, nil }
	wait := func(d time.Duration) core.Preference { return core.Preference{Bounded: true, Wait: d} }
	for _, c := range []struct {
		name    string
		then    core.ConflictPolicy
		prefers core.Preference
		waited  time.Duration
		encode  func() ([]byte, error)
		want    string
	}{
		{"none", parks{deferred}, core.Preference{}, 9 * s, encode, "retry"},
		{"a wait that counts only if bounded", parks{deferred}, core.Preference{Wait: s}, 9 * s, encode, "retry"},
		{"shorter", nil, wait(3 * s), 3*s - 1, encode, "retry"},
		{"shorter, over", nil, wait(3 * s), 3 * s, encode, "reject"},
		{"longer", nil, wait(time.Hour), 10*s - 1, encode, "retry"},
		{"longer, over", nil, wait(time.Hour), 10 * s, encode, "reject"},
		{"not at all", nil, wait(0), 0, encode, "reject"},
		{"less than that", nil, wait(-s), 0, encode, "reject"},
		{"not at all, then", parks{deferred}, wait(0), 0, encode, "deferred"},
		{"async", parks{deferred}, core.Preference{Async: true}, 0, encode, "deferred"},
		{"async, further down", retry.Policy{Then: parks{deferred}}, core.Preference{Async: true}, 0, encode, "deferred"},
		{"async that nobody defers", nil, core.Preference{Async: true}, 9 * s, encode, "retry"},
		{"async that nobody is known to defer", deferred, core.Preference{Async: true}, 9 * s, encode, "retry"},
		{"async that cannot be deferred", parks{deferred}, core.Preference{Async: true}, 9 * s, nil, "retry"},
		{"wait, then async", parks{deferred}, core.Preference{Bounded: true, Wait: s, Async: true}, s - 1, encode, "retry"},
		{"wait over, then async", parks{deferred}, core.Preference{Bounded: true, Wait: s, Async: true}, s, encode, "deferred"},
	} {
		p := retry.Policy{MaxWait: 10 * s, Then: c.then}
		d, err := p.OnConflict(t.Context(), core.Conflict{
			Call: core.Call{Prefer: c.prefers, Encode: c.encode}, Attempt: 1, Waited: c.waited,
		})
		require.NoError(t, err)
		require.Equal(t, c.want, d.String(), c.name)
	}

	all := core.Preference{Bounded: true, Wait: s, Async: true}
	require.Equal(t, wait(s), retry.Policy{}.Honors(all))
	require.Equal(t, all, retry.Policy{Then: parks{deferred}}.Honors(all))
	require.Equal(t, all, (*core.Locker)(nil).Guard(retry.Policy{Then: parks{deferred}}).Honors(all))
	require.Zero(t, (*core.Locker)(nil).Guard(core.RejectConflicts).Honors(all))
	require.Zero(t, (*core.Locker)(nil).Guard(deferred).Honors(all))
	require.Zero(t, (*core.Guard)(nil).Honors(all))
}
