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

// Peek sees what a call that does not wait would meet, changes nothing and is reported only as a conflict.
func TestGuard_Peek(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rival := newLocker(t, env)
		var seen recorder
		l := newLocker(t, env, core.WithObserver(&seen))
		for _, test := range []struct {
			name  string
			held  []core.AcquireOption // nil: the key is free
			call  core.Call
			opts  []core.AcquireOption
			meets bool
		}{
			{name: "free"},
			{name: "held", held: []core.AcquireOption{core.Named("", "")}, meets: true},
			{name: "held, shared call", held: []core.AcquireOption{core.Named("", "")}, call: core.Call{Shared: true}, meets: true},
			{name: "shared, shared call", held: []core.AcquireOption{core.Shared()}, call: core.Call{Shared: true}},
			{name: "shared", held: []core.AcquireOption{core.Shared()}, meets: true},
			{name: "counted, room", held: []core.AcquireOption{core.Counted(2)}, opts: []core.AcquireOption{core.Counted(2)}},
			{name: "counted, no room", held: []core.AcquireOption{core.Counted(2)}, opts: []core.AcquireOption{core.Counted(1)}, meets: true},
		} {
			t.Run(test.name, func(t *testing.T) {
				told := len(eventsOf[core.Outcome](&seen))
				ctx, key := t.Context(), "peek:"+test.name
				if test.held != nil {
					lease := testbed.Take(t, rival, key, test.held...)
					defer func() { _ = lease.Release(ctx) }()
				}
				test.call.Key, test.call.Name = key, "POST /orders"
				guard := l.Guard(core.RejectConflicts, test.opts...)
				before := redistest.Keys(t, env.Client(t), env.Prefix)
				err := guard.Peek(ctx, test.call)
				outcomes := eventsOf[core.Outcome](&seen)[told:]
				require.Equal(t, before, redistest.Keys(t, env.Client(t), env.Prefix), "nothing changes in Redis")
				var conflict *core.ConflictError
				if !test.meets {
					require.NoError(t, err)
					require.Empty(t, outcomes)
				} else {
					require.ErrorAs(t, err, &conflict)
					require.Equal(t, key, conflict.Key)
					require.Greater(t, conflict.Remaining, time.Second)
					require.Len(t, outcomes, 1)
					require.Equal(t, core.OutcomeConflict, outcomes[0].Kind)
					require.Equal(t, "POST /orders", outcomes[0].Name)
				}
				ran := false
				err = guard.Do(ctx, test.call, func(context.Context) error { ran = true; return nil })
				require.Equal(t, test.meets, err != nil, "Do is of the same mind")
				require.Equal(t, !test.meets, ran)
			})
		}
	})
}

func TestGuard_PeekMeetsCallsThatWaitAndNotItsOwnLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, rival := newLocker(t, env), newLocker(t, env)
		shared := testbed.Take(t, rival, "waited", core.Shared())
		ctx, leave := context.WithCancel(t.Context())
		left := acquiringCtx(ctx, rival, "waited")
		redistest.Eventually(t, func() bool {
			info, err := l.Inspect(t.Context(), "waited")
			return err == nil && info.Waiting == 1
		}, "the call waits")
		guard := l.Guard(core.RejectConflicts)
		require.ErrorIs(t, guard.Peek(t.Context(), core.Call{Key: "waited", Shared: true}), core.ErrConflict, "another call waits")
		leave()
		require.ErrorIs(t, (<-left).err, context.Canceled)
		require.NoError(t, shared.Release(t.Context()))

		own := testbed.Take(t, l, "own")
		defer func() { _ = own.Release(t.Context()) }()
		require.NoError(t, guard.Peek(own.Context(), core.Call{Key: "own"}), "the caller has the key")
		require.ErrorIs(t, guard.Peek(t.Context(), core.Call{Key: "own"}), core.ErrConflict)
		require.ErrorIs(t, guard.Peek(t.Context(), core.Call{}), core.ErrInvalidKey)
		require.ErrorIs(t, (*core.Locker)(nil).Guard(core.RejectConflicts).Peek(t.Context(), core.Call{Key: "own"}), core.ErrInvalidOption)
	})
}
