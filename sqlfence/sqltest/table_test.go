package sqltest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/sqlfence"
)

func newLocker(t *testing.T) *core.Locker {
	t.Helper()
	env := redistest.Embedded(t)
	return testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix))
}

// holders are leases of one key, of which each but the last was taken away while its holder does not know.
func holders(t *testing.T, key string, n int) (leases []*core.Lease) {
	t.Helper()
	locker := newLocker(t)
	for len(leases) < n {
		lease := testbed.Take(t, locker, key)
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

func TestClaim_TheNewestOfManyWins(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		db.SetMaxOpenConns(8)
		leases := holders(t, "order:42", 40)
		newest := leases[len(leases)-1]
		rand.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
		var claims sync.WaitGroup
		for _, lease := range leases {
			claims.Go(func() {
				err := db.fences.Claim(t.Context(), db, lease)
				if err == nil || lease == newest {
					assert.NoError(t, err)
					return
				}
				assert.ErrorIs(t, err, sqlfence.ErrStale)
			})
		}
		claims.Wait()
		for _, lease := range leases {
			err := db.fences.Write(t.Context(), db.DB, lease, func(*sql.Tx) error { return nil })
			if lease != newest {
				requireStale(t, err, lease, newest)
				requireStale(t, db.fences.Claim(t.Context(), db, lease), lease, newest)
				continue
			}
			require.NoError(t, err)
		}
		require.NoError(t, db.fences.Claim(t.Context(), db, holders(t, "order:43", 1)[0]), "of another key")
	})
}

func TestWrite_IsAllOrNothing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		createShop(t, db)
		lease := holders(t, "order:42", 1)[0]
		require.NoError(t, db.fences.Claim(t.Context(), db, lease))
		errOwn := errors.New("no money")
		write := func(then func() error) error {
			return db.fences.Write(t.Context(), db.DB, lease, func(tx *sql.Tx) error {
				require.NoError(t, pay(t.Context(), db.q(tx), lease, "42", 0))
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
		require.ErrorIs(t, db.fences.Claim(over, db, lease), context.Canceled)
		require.ErrorIs(t, db.fences.Write(over, db.DB, lease, nil), context.Canceled)
	})
}

func TestCheck_WantsATransaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		h := holders(t, "order:42", 2)
		require.NoError(t, db.fences.Claim(t.Context(), db, h[0]))
		require.ErrorIs(t, db.fences.Check(t.Context(), db.DB, h[0]), core.ErrInvalidOption)

		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(t.Context(), "BEGIN")
		require.NoError(t, err)
		require.NoError(t, db.fences.Check(t.Context(), conn, h[0]))
		_, err = conn.ExecContext(t.Context(), "COMMIT")
		require.NoError(t, err)
	})
}

func TestLeases_ThatCannotClaim(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		createShop(t, db, "42")
		locker := newLocker(t)
		shared := testbed.Take(t, locker, "shared", core.Shared())
		counted := testbed.Take(t, locker, "counted", core.Counted(2))
		downgraded := testbed.Take(t, locker, "downgraded")
		require.NoError(t, db.fences.Claim(t.Context(), db, downgraded))
		require.NoError(t, downgraded.Downgrade(t.Context()))
		for lease, want := range map[*core.Lease]error{
			nil: core.ErrLeaseLost, shared: core.ErrNotExclusive, counted: core.ErrNotExclusive, downgraded: core.ErrNotExclusive,
		} {
			require.ErrorIs(t, db.fences.Claim(t.Context(), db, lease), want)
			require.ErrorIs(t, db.fences.Write(t.Context(), db.DB, lease, nil), want)
			require.ErrorIs(t, sqlfence.Exec(t.Context(), db.q(db), lease, "UPDATE orders SET fence = $1"), want)
		}
	})
}

// A lease of a set is had by taking its key again under the set's context.
func TestWrite_ChecksEachKeyOfASet(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		locker := newLocker(t)
		set, err := locker.AcquireAll(t.Context(), []string{"wallet:a", "wallet:b"})
		require.NoError(t, err)
		leases := map[string]*core.Lease{}
		for _, key := range set.Keys() {
			lease, err := locker.Acquire(set.Context(), key)
			require.NoError(t, err)
			require.Equal(t, set.Fence(key), lease.Fence())
			require.NoError(t, db.fences.Claim(set.Context(), db, lease))
			leases[key] = lease
		}
		transfer := func() error {
			return db.fences.Write(t.Context(), db.DB, leases["wallet:a"], func(tx *sql.Tx) error {
				return db.fences.Check(t.Context(), tx, leases["wallet:b"])
			})
		}
		require.NoError(t, transfer())
		require.NoError(t, set.Release(t.Context()))
		newer := testbed.Take(t, locker, "wallet:b")
		require.NoError(t, db.fences.Claim(t.Context(), db, newer))
		requireStale(t, transfer(), leases["wallet:b"], newer)
	})
}

// Statements on a column of one's own.
const (
	claim = "UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1"
	write = "UPDATE orders SET paid = paid + 1 WHERE fence = $1 AND id = $2"
)

func TestExec_IsForAColumnOfYours(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		createShop(t, db, "42")
		h := holders(t, "order:42", 2)
		require.ErrorIs(t, sqlfence.Exec(t.Context(), db.q(db), h[0], write, "42"), sqlfence.ErrStale, "not claimed")
		require.NoError(t, sqlfence.Exec(t.Context(), db.q(db), h[0], claim, "42"))
		if db.driver != "mysql" { // it needs clientFoundRows=true
			require.NoError(t, sqlfence.Exec(t.Context(), db.q(db), h[0], claim, "42"))
		}
		require.NoError(t, sqlfence.Exec(t.Context(), db.q(db), h[0], write, "42"))
		require.NoError(t, sqlfence.Exec(t.Context(), db.q(db), h[1], claim, "42"))
		for _, statement := range []string{claim, write} {
			err := sqlfence.Exec(t.Context(), db.q(db), h[0], statement, "42")
			require.ErrorIs(t, err, sqlfence.ErrStale)
			require.ErrorIs(t, err, core.ErrLeaseLost)
		}
		require.ErrorIs(t, sqlfence.Exec(t.Context(), db.q(db), h[1], claim, "43"), sqlfence.ErrStale, "there is no such row")
		err := sqlfence.Exec(t.Context(), db.q(db), h[1], "UPDATE none SET fence = $1")
		require.Error(t, err)
		require.NotErrorIs(t, err, sqlfence.ErrStale)
	})
}

// What a table asks does not depend on how the driver counts.
func TestTable_HoweverRowsAreCounted(t *testing.T) {
	t.Parallel()
	db := open(t, mariadb.driver, mariadb.newSource(t)+"?clientFoundRows=true")
	createShop(t, db, "42")
	create(t, db, db.fences.Create())
	requirePromises(t, db)
	lease := holders(t, "order:42", 1)[0]
	require.NoError(t, sqlfence.Exec(t.Context(), db.q(db), lease, claim, "42"))
	require.NoError(t, sqlfence.Exec(t.Context(), db.q(db), lease, claim, "42"))
}

func TestTable_HasAnyName(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		schema := "main"
		if query := map[string]string{"pgx": "SELECT current_schema()", "mysql": "SELECT database()"}[db.driver]; query != "" {
			require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&schema))
		}
		h := holders(t, "order:42", 2)
		for _, name := range []string{"shop_fences", schema + ".Fences2"} {
			table := sqlfence.Table{Name: name, Dialect: db.fences.Dialect}
			create(t, db, table.Create(), table.Create())
			require.NoError(t, table.Claim(t.Context(), db, h[1]))
			requireStale(t, table.Claim(t.Context(), db, h[0]), h[0], h[1])
			require.NoError(t, table.Write(t.Context(), db.DB, h[1], func(*sql.Tx) error { return nil }))
		}
		require.NoError(t, db.fences.Claim(t.Context(), db, h[0]), "tables know nothing of one another")
		for _, name := range []string{"a b", "a;", `"a"`, "a.b.c", ".a", "1a", "a."} {
			table := sqlfence.Table{Name: name, Dialect: db.fences.Dialect}
			require.ErrorIs(t, table.Claim(t.Context(), db, h[0]), core.ErrInvalidOption, name)
			require.ErrorIs(t, table.Write(t.Context(), db.DB, h[0], nil), core.ErrInvalidOption, name)
			_, err := table.Prune(t.Context(), db, time.Now())
			require.ErrorIs(t, err, core.ErrInvalidOption, name)
		}
		unknown := sqlfence.Table{Dialect: 7}
		require.ErrorIs(t, unknown.Claim(t.Context(), db, h[0]), core.ErrInvalidOption)
		require.ErrorIs(t, unknown.Write(t.Context(), db.DB, h[0], nil), core.ErrInvalidOption)
		missing := sqlfence.Table{Name: "missing", Dialect: db.fences.Dialect}
		err := missing.Claim(t.Context(), db, h[0])
		require.ErrorContains(t, err, "missing")
		require.NotErrorIs(t, err, sqlfence.ErrStale)
		require.Error(t, missing.Write(t.Context(), db.DB, h[0], nil))
	})
}

// A holder whose row is gone is refused, whoever claims next.
func TestPrune_LetsNoStaleWriteIn(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		table := db.fences
		h := holders(t, "order:42", 2)
		write := func(lease *core.Lease) error {
			return db.fences.Write(t.Context(), db.DB, lease, func(*sql.Tx) error { return nil })
		}
		require.NoError(t, db.fences.Claim(t.Context(), db, h[1]))
		removed, err := table.Prune(t.Context(), db, time.Now().Add(-time.Hour))
		require.NoError(t, err)
		require.Zero(t, removed)
		require.NoError(t, write(h[1]))

		removed, err = table.Prune(t.Context(), db, time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.EqualValues(t, 1, removed)
		require.ErrorIs(t, write(h[1]), sqlfence.ErrNotClaimed, "nobody has claimed")
		require.NoError(t, db.fences.Claim(t.Context(), db, h[0]), "an earlier holder, which reads now")
		err = write(h[1])
		require.ErrorIs(t, err, sqlfence.ErrNotClaimed)
		require.NotErrorIs(t, err, sqlfence.ErrStale)
		require.ErrorContains(t, err, "order:42")
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
			eachDatabase(t, func(t *testing.T, db *database) {
				createShop(t, db)
				wrong := 0
				all := orders(2, test.steps)
				require.Len(t, all, test.orders)
				for i, order := range all {
					key := fmt.Sprint("order:", i)
					_, err := db.q(db).ExecContext(t.Context(), "INSERT INTO orders VALUES ($1, 0, 0)", key)
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
func playedWrong(t *testing.T, db *database, r recipe, key string, order []int) int {
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

func eachPostgresDriver(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			db := open(t, driver, postgres.newSource(t))
			create(t, db, db.fences.Create(), "CREATE TABLE orders (id text, fence bigint, paid int)", "INSERT INTO orders VALUES ('42', 0, 0)")
			test(t, db)
		})
	}
}

// An error of a ctx that has ended is the ctx's, whatever a driver says.
func TestErrors_AreThoseOfTheContext(t *testing.T) {
	eachPostgresDriver(t, func(t *testing.T, db *database) {
		h := holders(t, "order:42", 2)
		require.NoError(t, db.fences.Claim(t.Context(), db, h[0]))
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, db.fences.Check(t.Context(), tx, h[0]))
		ctx, lose := context.WithCancelCause(t.Context())
		claimed := make(chan error, 1)
		go func() { claimed <- db.fences.Claim(ctx, db, h[1]) }()
		redistest.Eventually(t, func() bool { return stage{db: db}.waits(t) }, "a claim that waits")
		lose(core.ErrLeaseLost)
		err = <-claimed
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, core.ErrLeaseLost)
		require.NoError(t, tx.Rollback())

		ctx, cancel := context.WithCancel(t.Context())
		other := holders(t, "order:43", 1)[0] // the server may yet claim for h[1]
		require.NoError(t, db.fences.Claim(ctx, db, other))
		require.ErrorIs(t, db.fences.Write(ctx, db.DB, other, func(*sql.Tx) error { cancel(); return nil }), context.Canceled)
	})
}

// A connection breaks when the server has run the statement, and its reply is lost.
func TestExec_RunsAStatementOnce(t *testing.T) {
	eachPostgresDriver(t, func(t *testing.T, db *database) {
		proxy := redistest.NewProxy(t, fmt.Sprint("127.0.0.1:", postgres.port))
		_, port, _ := strings.Cut(proxy.Addr, ":")
		through := open(t, db.driver, strings.Replace(db.source, fmt.Sprint("port=", postgres.port), "port="+port, 1))
		lease := holders(t, "order:42", 1)[0]
		require.NoError(t, sqlfence.Exec(t.Context(), through, lease, claim, "42"))
		var lost atomic.Bool
		proxy.DropReply(func(reply []byte) bool {
			if !bytes.Contains(reply, []byte("UPDATE 1")) || lost.Swap(true) {
				return false
			}
			go proxy.Cut()
			return true
		})
		require.Error(t, sqlfence.Exec(t.Context(), through.DB, lease, write, "42"))
		var paid int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT paid FROM orders").Scan(&paid))
		require.Equal(t, 1, paid)
	})
}
