package core_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

type pointerPolicy struct{}

func (*pointerPolicy) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Reject(), nil
}

// What was declared and never made is an error, and no panic.
func TestNil_WhatWasForgottenIsAnError(t *testing.T) {
	t.Parallel()
	var client *redis.Client
	var cluster *redis.ClusterClient
	for _, rdb := range []redis.UniversalClient{nil, client, cluster} {
		_, err := core.New(rdb)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		_, err = core.NewQuorum([]redis.UniversalClient{rdb, rdb, rdb})
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
	l, err := core.New(redistest.Embedded(t).Client(t))
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	_, err = core.New(redistest.Embedded(t).Client(t), core.WithRenewalClient(client))
	require.ErrorIs(t, err, core.ErrInvalidOption)

	require.ErrorIs(t, l.Do(t.Context(), "k", nil), core.ErrInvalidOption)
	require.ErrorIs(t, l.Guard(core.RejectConflicts).Do(t.Context(), core.Call{Key: "k"}, nil), core.ErrInvalidOption)
	_, err = l.TryAcquire(t.Context(), "k")
	require.NoError(t, err, "nothing was taken")

	g := l.Guard((*pointerPolicy)(nil))
	require.ErrorContains(t, g.Err(), "policy is a nil *core_test.pointerPolicy")
	require.Zero(t, (*core.Lease)(nil).Fence())
}
