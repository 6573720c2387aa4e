package core_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

type pointerPolicy struct{}

func (*pointerPolicy) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Reject(), nil
}

// What was declared and never made, or has no meaning, is an error and no panic.
func TestOptions_MistakesAreErrors(t *testing.T) {
	t.Parallel()
	var client *redis.Client
	var cluster *redis.ClusterClient
	for _, rdb := range []redis.UniversalClient{nil, client, cluster} {
		_, err := core.New(rdb)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		_, err = core.NewQuorum([]redis.UniversalClient{rdb, rdb, rdb})
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
	rdb := redistest.Embedded(t).Client(t)
	for name, opt := range map[string]core.Option{
		"negative ttl": core.WithTTL(-1), "zero ttl": core.WithTTL(0), "short ttl": core.WithTTL(time.Millisecond), "long ttl": core.WithTTL(48 * time.Hour),
		"negative first lease": core.WithFirstLease(-1), "no first lease": core.WithFirstLease(0), "short first lease": core.WithFirstLease(core.MinTTL - 1),
		"long first lease": core.WithFirstLease(core.MaxTTL + 1), "nil client": core.WithRenewalClient(client), "nil logger": core.WithLogger(nil),
		"no prefix": core.WithPrefix(""), "braces": core.WithPrefix("a{b}"), "space": core.WithPrefix("a b"), "long prefix": core.WithPrefix(strings.Repeat("p", 65)),
		"nil observer": core.WithObserver(nil), "nil pointer as observer": core.WithObserver((*lossCounter)(nil)),
	} {
		_, err := core.New(rdb, opt)
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
	}
	l := lockerOn(t, rdb, "p")
	for _, opt := range []core.AcquireOption{core.LeaseTTL(0), core.FixedLease(-1), core.NotifyRelease(nil), reservations.Reserved(0)} {
		_, err := l.TryAcquire(t.Context(), "k", opt)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		require.ErrorIs(t, l.Guard(core.RejectConflicts, opt).Err(), core.ErrInvalidOption)
	}
	require.ErrorIs(t, l.Do(t.Context(), "k", nil), core.ErrInvalidOption)
	require.ErrorIs(t, l.Guard(core.RejectConflicts).Do(t.Context(), core.Call{Key: "k"}, nil), core.ErrInvalidOption)
	testbed.Take(t, l, "k") // nothing was taken
	require.ErrorContains(t, l.Guard((*pointerPolicy)(nil)).Err(), "policy is a nil *core_test.pointerPolicy")
	for _, guard := range []*core.Guard{(*core.Locker)(nil).Guard(core.RejectConflicts), {}, nil} {
		require.ErrorIs(t, guard.Err(), core.ErrInvalidOption)
		require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k"}, nil), core.ErrInvalidOption)
	}
}
