package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/sqlfence"
)

func newLocker(t *testing.T) *core.Locker {
	t.Helper()
	env := redistest.Embedded(t)
	locker, err := core.New(env.Client(t), core.WithPrefix(env.Prefix))
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

// holders are leases of one key, of which each but the last was taken away while its holder
// does not know.
func holders(t *testing.T, key string, n int) (leases []*core.Lease) {
	t.Helper()
	locker := newLocker(t)
	for len(leases) < n {
		lease, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		leases = append(leases, lease)
		taken, err := locker.ForceRelease(t.Context(), key, lease.Fence())
		require.NoError(t, err)
		require.True(t, taken)
	}
	return leases
}

func requireStale(t *testing.T, err error, lease, newest *core.Lease) {
	t.Helper()
	require.ErrorIs(t, err, sqlfence.ErrStale)
	require.ErrorIs(t, err, core.ErrLeaseLost)
	require.NotErrorIs(t, err, sqlfence.ErrNotClaimed)
	var stale *sqlfence.StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, sqlfence.StaleError{Key: lease.Key(), Fence: lease.Fence(), Newest: newest.Fence()}, *stale)
	require.ErrorContains(t, err, lease.Key())
}

func TestClaim_StopsEarlierHolders(t *testing.T) {
	eachDatabase(t, func(t *testing.T, _ source, db *sql.DB) {
		h := holders(t, "order:42", 3)
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[0]), "there is no row yet")
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[0]), "again")
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[2]))
		for _, stale := range h[:2] {
			requireStale(t, sqlfence.Claim(t.Context(), db, stale), stale, h[2])
			err := sqlfence.Write(t.Context(), db, stale, func(*sql.Tx) error { panic("it writes") })
			requireStale(t, err, stale, h[2])
		}
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[2]))
		require.NoError(t, sqlfence.Claim(t.Context(), db, holders(t, "order:43", 1)[0]), "of another key")
	})
}

func TestClaim_TheNewestOfManyWins(t *testing.T) {
	eachDatabase(t, func(t *testing.T, _ source, db *sql.DB) {
		db.SetMaxOpenConns(8)
		leases := holders(t, "order:42", 40)
		newest := leases[len(leases)-1]
		rand.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
		var claims sync.WaitGroup
		for _, lease := range leases {
			claims.Go(func() {
				err := sqlfence.Claim(t.Context(), db, lease)
				if err == nil || lease == newest {
					assert.NoError(t, err)
					return
				}
				assert.ErrorIs(t, err, sqlfence.ErrStale)
			})
		}
		claims.Wait()
		for _, lease := range leases {
			err := sqlfence.Write(t.Context(), db, lease, func(*sql.Tx) error { return nil })
			if lease != newest {
				requireStale(t, err, lease, newest)
				continue
			}
			require.NoError(t, err)
		}
	})
}

func TestWrite_NeedsAClaimOfItsLease(t *testing.T) {
	eachDatabase(t, func(t *testing.T, src source, db *sql.DB) {
		createShop(t, src, db)
		h := holders(t, "order:42", 2)
		write := func(lease *core.Lease) error {
			return sqlfence.Write(t.Context(), db, lease, func(tx *sql.Tx) error { return pay(t.Context(), tx, lease, "42", 0) })
		}
		require.ErrorIs(t, write(h[1]), sqlfence.ErrNotClaimed, "nobody has claimed")
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[0]))
		err := write(h[1])
		require.ErrorIs(t, err, sqlfence.ErrNotClaimed, "an earlier holder has")
		require.NotErrorIs(t, err, sqlfence.ErrStale)
		require.ErrorContains(t, err, "order:42")
		require.Zero(t, auditDatabase(t, db).payments)
		require.NoError(t, write(h[0]))
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[1]))
		require.NoError(t, write(h[1]))
		require.Equal(t, 2, auditDatabase(t, db).payments)
	})
}

func TestWrite_IsAllOrNothing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, src source, db *sql.DB) {
		createShop(t, src, db)
		lease := holders(t, "order:42", 1)[0]
		require.NoError(t, sqlfence.Claim(t.Context(), db, lease))
		errOwn := errors.New("no money")
		write := func(then func() error) error {
			return sqlfence.Write(t.Context(), db, lease, func(tx *sql.Tx) error {
				require.NoError(t, pay(t.Context(), tx, lease, "42", 0))
				return then()
			})
		}
		require.ErrorIs(t, write(func() error { return errOwn }), errOwn)
		require.PanicsWithValue(t, "no money", func() { _ = write(func() error { panic("no money") }) })
		require.Zero(t, auditDatabase(t, db).payments)
		require.NoError(t, write(func() error { return nil }))
		require.Equal(t, 1, auditDatabase(t, db).payments)
		require.Zero(t, db.Stats().InUse)

		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, sqlfence.Claim(over, db, lease), context.Canceled)
		require.ErrorIs(t, sqlfence.Write(over, db, lease, nil), context.Canceled)
	})
}

func TestCheck_WantsATransaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, _ source, db *sql.DB) {
		h := holders(t, "order:42", 2)
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[0]))
		require.ErrorIs(t, sqlfence.Check(t.Context(), db, h[0]), core.ErrInvalidOption)

		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(t.Context(), "BEGIN")
		require.NoError(t, err)
		require.NoError(t, sqlfence.Check(t.Context(), conn, h[0]))
		_, err = conn.ExecContext(t.Context(), "COMMIT")
		require.NoError(t, err)
	})
}

func TestLeases_ThatCannotClaim(t *testing.T) {
	eachDatabase(t, func(t *testing.T, src source, db *sql.DB) {
		createShop(t, src, db, "42")
		locker := newLocker(t)
		shared, err := locker.TryAcquire(t.Context(), "shared", core.Shared())
		require.NoError(t, err)
		counted, err := locker.TryAcquire(t.Context(), "counted", core.Counted(2))
		require.NoError(t, err)
		downgraded, err := locker.TryAcquire(t.Context(), "downgraded")
		require.NoError(t, err)
		require.NoError(t, sqlfence.Claim(t.Context(), db, downgraded))
		require.NoError(t, downgraded.Downgrade(t.Context()))
		for lease, want := range map[*core.Lease]error{
			nil: core.ErrLeaseLost, shared: core.ErrNotExclusive, counted: core.ErrNotExclusive, downgraded: core.ErrNotExclusive,
		} {
			require.ErrorIs(t, sqlfence.Claim(t.Context(), db, lease), want)
			require.ErrorIs(t, sqlfence.Write(t.Context(), db, lease, nil), want)
			require.ErrorIs(t, sqlfence.Exec(t.Context(), db, lease, "UPDATE orders SET fence = $1"), want)
		}
	})
}

// A lease of a set is had by taking its key again under the set's context, without a round trip.
func TestClaim_EachKeyOfASet(t *testing.T) {
	eachDatabase(t, func(t *testing.T, _ source, db *sql.DB) {
		locker := newLocker(t)
		set, err := locker.AcquireAll(t.Context(), []string{"wallet:a", "wallet:b"})
		require.NoError(t, err)
		for _, key := range set.Keys() {
			lease, err := locker.Acquire(set.Context(), key)
			require.NoError(t, err)
			require.Equal(t, set.Fence(key), lease.Fence())
			require.NoError(t, sqlfence.Claim(set.Context(), db, lease))
		}
		require.NoError(t, set.Release(t.Context()))
	})
}

func TestExec_IsForAColumnOfYours(t *testing.T) {
	eachDatabase(t, func(t *testing.T, src source, db *sql.DB) {
		createShop(t, src, db, "42")
		const claim, write = "UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1", "UPDATE orders SET paid = paid + 1 WHERE fence = $1 AND id = $2"
		h := holders(t, "order:42", 2)
		require.ErrorIs(t, sqlfence.Exec(t.Context(), db, h[0], write, "42"), sqlfence.ErrStale, "not claimed")
		require.NoError(t, sqlfence.Exec(t.Context(), db, h[0], claim, "42"))
		require.NoError(t, sqlfence.Exec(t.Context(), db, h[0], claim, "42"))
		require.NoError(t, sqlfence.Exec(t.Context(), db, h[0], write, "42"))
		require.NoError(t, sqlfence.Exec(t.Context(), db, h[1], claim, "42"))
		for _, statement := range []string{claim, write} {
			err := sqlfence.Exec(t.Context(), db, h[0], statement, "42")
			require.ErrorIs(t, err, sqlfence.ErrStale)
			require.ErrorIs(t, err, core.ErrLeaseLost)
		}
		require.ErrorIs(t, sqlfence.Exec(t.Context(), db, h[1], claim, "43"), sqlfence.ErrStale, "there is no such row")
		err := sqlfence.Exec(t.Context(), db, h[1], "UPDATE none SET fence = $1")
		require.Error(t, err)
		require.NotErrorIs(t, err, sqlfence.ErrStale)
	})
}

func TestTable_HasAnyName(t *testing.T) {
	eachDatabase(t, func(t *testing.T, src source, db *sql.DB) {
		schema := "main"
		if src.driver != "sqlite" {
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
		}
		h := holders(t, "order:42", 2)
		for _, name := range []string{"shop_fences", schema + ".Fences2"} {
			table := sqlfence.Table{Name: name}
			create(t, db, table.Create(), table.Create())
			require.NoError(t, table.Claim(t.Context(), db, h[1]))
			requireStale(t, table.Claim(t.Context(), db, h[0]), h[0], h[1])
			require.NoError(t, table.Write(t.Context(), db, h[1], func(*sql.Tx) error { return nil }))
		}
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[0]), "tables know nothing of one another")
		for _, name := range []string{"a b", "a;", `"a"`, "a.b.c", ".a", "1a", "a."} {
			table := sqlfence.Table{Name: name}
			require.ErrorIs(t, table.Claim(t.Context(), db, h[0]), core.ErrInvalidOption, name)
			require.ErrorIs(t, table.Write(t.Context(), db, h[0], nil), core.ErrInvalidOption, name)
			_, err := table.Prune(t.Context(), db, time.Now())
			require.ErrorIs(t, err, core.ErrInvalidOption, name)
		}
		missing := sqlfence.Table{Name: "missing"}
		err := missing.Claim(t.Context(), db, h[0])
		require.ErrorContains(t, err, "missing")
		require.NotErrorIs(t, err, sqlfence.ErrStale)
		require.Error(t, missing.Write(t.Context(), db, h[0], nil))
	})
}

// A holder whose row is gone is refused, whoever claims next.
func TestPrune_LetsNoStaleWriteIn(t *testing.T) {
	eachDatabase(t, func(t *testing.T, _ source, db *sql.DB) {
		var table sqlfence.Table
		h := holders(t, "order:42", 2)
		write := func(lease *core.Lease) error {
			return sqlfence.Write(t.Context(), db, lease, func(*sql.Tx) error { return nil })
		}
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[1]))
		removed, err := table.Prune(t.Context(), db, time.Now().Add(-time.Hour))
		require.NoError(t, err)
		require.Zero(t, removed)
		require.NoError(t, write(h[1]))

		removed, err = table.Prune(t.Context(), db, time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.EqualValues(t, 1, removed)
		require.ErrorIs(t, write(h[1]), sqlfence.ErrNotClaimed)
		require.NoError(t, sqlfence.Claim(t.Context(), db, h[0]), "an earlier holder, which reads now")
		require.ErrorIs(t, write(h[1]), sqlfence.ErrNotClaimed)
		require.NoError(t, write(h[0]))
	})
}

// orders are all orders of n steps of each of several.
func orders(several, n int) (all [][]int) {
	var next func(sofar []int, left []int)
	next = func(sofar []int, left []int) {
		done := true
		for i := range left {
			if left[i] > 0 {
				done = false
				rest := slices.Clone(left)
				rest[i]--
				next(append(slices.Clip(sofar), i), rest)
			}
		}
		if done {
			all = append(all, sofar)
		}
	}
	next(nil, slices.Repeat([]int{n}, several))
	return all
}

// Two holders of a key take the steps of a recipe in each order that there is.
func TestRecipes_InEveryOrder(t *testing.T) {
	for name, test := range map[string]struct{ steps, orders, wrong int }{
		"apart":  {steps: 3, orders: 20},
		"column": {steps: 3, orders: 20},
		"old":    {steps: 2, orders: 6, wrong: 2}, // both read, then the stale holder writes, then the other one
	} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, src source, db *sql.DB) {
				createShop(t, src, db)
				wrong := 0
				all := orders(2, test.steps)
				require.Len(t, all, test.orders)
				for i, order := range all {
					key := fmt.Sprint("order:", i)
					_, err := db.ExecContext(t.Context(), "INSERT INTO orders VALUES ($1, 0, 0)", key)
					require.NoError(t, err)
					wrong += playedWrong(t, db, recipes[name], key, order)
				}
				require.Equal(t, test.wrong, wrong)
				require.Equal(t, test.wrong, auditDatabase(t, db).twice)
			})
		})
	}
}

// playedWrong lets two holders take their steps in this order, and counts the stale writes.
func playedWrong(t *testing.T, db *sql.DB, r recipe, key string, order []int) int {
	t.Helper()
	before := auditDatabase(t, db)
	var steps, stood [2]chan struct{}
	var playing sync.WaitGroup
	for i, lease := range holders(t, key, 2) {
		steps[i], stood[i] = make(chan struct{}), make(chan struct{})
		playing.Go(func() {
			defer close(stood[i])
			<-steps[i]
			err := r(t.Context(), db, lease, key, func() {
				stood[i] <- struct{}{}
				<-steps[i]
			})
			if err != nil {
				assert.ErrorIs(t, err, sqlfence.ErrStale)
			}
		})
	}
	for _, i := range order {
		select {
		case steps[i] <- struct{}{}:
			<-stood[i]
		case <-stood[i]: // it was refused before
		}
	}
	playing.Wait()
	after := auditDatabase(t, db)
	require.Greater(t, after.payments, before.payments)
	return after.stale - before.stale
}
