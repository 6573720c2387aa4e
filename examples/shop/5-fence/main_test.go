package main

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/examples/shop/store"
	"github.com/perkey-go/perkey/locktest"
	"github.com/perkey-go/perkey/sqlfence"
)

func TestShop_WhoWasOvertakenWritesNothing(t *testing.T) {
	redis := locktest.New(t)
	locker := redis.Locker(t)
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	_, err = db.ExecContext(t.Context(), sqlfence.Table{}.Create())
	require.NoError(t, err)

	charged := 0
	s := &shop{db: db}
	pay := func(ctx context.Context) error {
		_, err := s.pay(context.WithoutCancel(ctx), 7) // as a process that was stopped, and did not see its ctx end
		return err
	}
	s.work = func(context.Context) error {
		charged++
		if charged > 1 {
			return nil
		}
		// The first payment has read the order. Now it loses its key, and a second one runs from its begin to its end.
		release := redis.Steal(t, "order:7")
		release()
		return locker.Do(t.Context(), "order:7", pay)
	}
	require.ErrorIs(t, locker.Do(t.Context(), "order:7", pay), sqlfence.ErrStale)
	status, err := store.Status(t.Context(), db, 7)
	require.NoError(t, err)
	require.Equal(t, "paid", status) // by the second
	require.Equal(t, 2, charged)     // the fence keeps the database right; the provider needs an idempotency key
}
