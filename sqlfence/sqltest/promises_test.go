package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/sqlfence"
)

// A stage is where a promise is tried: a database, two holders of a key of which the first has
// lost it, and what sends sqlfence's statements.
type stage struct {
	src      source
	db       *sql.DB
	old, now *core.Lease
	through  func(sqlfence.Querier) sqlfence.Querier
}

func (s stage) claim(ctx context.Context, q sqlfence.Querier, lease *core.Lease) error {
	return sqlfence.Claim(ctx, s.through(q), lease)
}

// check checks in a transaction of its own.
func (s stage) check(t *testing.T, lease *core.Lease) error {
	t.Helper()
	return inTransaction(t.Context(), s.db, func(tx *sql.Tx) error {
		return sqlfence.Check(t.Context(), s.through(tx), lease)
	})
}

// promises report whether they are kept.
var promises = map[string]func(t *testing.T, s stage) bool{
	"an earlier holder cannot claim": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.now))
		return errors.Is(s.claim(t.Context(), s.db, s.old), sqlfence.ErrStale)
	},
	"a lease claims again": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.now))
		return s.claim(t.Context(), s.db, s.now) == nil
	},
	"a newer holder claims": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.old))
		return s.claim(t.Context(), s.db, s.now) == nil && s.check(t, s.now) == nil
	},
	"an earlier holder is refused": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.old))
		require.NoError(t, s.claim(t.Context(), s.db, s.now))
		return errors.Is(s.check(t, s.old), sqlfence.ErrStale)
	},
	"a holder that has not claimed is refused": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.old))
		return errors.Is(s.check(t, s.now), sqlfence.ErrNotClaimed)
	},
	"a claim sees what was under way": func(t *testing.T, s stage) bool {
		return s.readsWhatWasUnderWay(t, sql.LevelDefault)
	},
	"a claim sees it, or fails, under REPEATABLE READ": func(t *testing.T, s stage) bool {
		return s.src.driver == "sqlite" || s.readsWhatWasUnderWay(t, sql.LevelRepeatableRead)
	},
	"a claim sees it, or fails, under SERIALIZABLE": func(t *testing.T, s stage) bool {
		return s.src.driver == "sqlite" || s.readsWhatWasUnderWay(t, sql.LevelSerializable)
	},
	"a first claim sees it, or fails, under REPEATABLE READ": func(t *testing.T, s stage) bool {
		if s.src.driver == "sqlite" {
			return true
		}
		tx, err := s.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, s.claim(t.Context(), tx, s.old))
		return s.sees(t, tx, sql.LevelRepeatableRead)
	},
}

// readsWhatWasUnderWay has a holder write that has claimed before.
func (s stage) readsWhatWasUnderWay(t *testing.T, level sql.IsolationLevel) bool {
	t.Helper()
	require.NoError(t, s.claim(t.Context(), s.db, s.old))
	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, sqlfence.Check(t.Context(), s.through(tx), s.old))
	return s.sees(t, tx, level)
}

// sees reports whether the new holder, which claims while the transaction of the old one is
// under way, reads what that has written. If not, its claim may fail.
func (s stage) sees(t *testing.T, under *sql.Tx, level sql.IsolationLevel) bool {
	t.Helper()
	key := s.now.Key()
	require.NoError(t, pay(t.Context(), under, s.old, key, 0))
	type answer struct {
		paid int
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		if level == sql.LevelDefault {
			if a.err = s.claim(t.Context(), s.db, s.now); a.err == nil {
				a.paid, a.err = installments(t.Context(), s.db, key)
			}
		} else {
			tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			if a.err = err; err == nil {
				if a.err = s.claim(t.Context(), tx, s.now); a.err == nil {
					a.paid, a.err = installments(t.Context(), tx, key)
				}
				if a.err == nil { // or it could not commit
					a.err = pay(t.Context(), tx, s.now, key, a.paid)
				}
				a.err = errors.Join(a.err, tx.Commit())
			}
		}
		answers <- a
	}()
	if s.src.driver == "sqlite" {
		select {
		case a := <-answers:
			require.NoError(t, a.err)
			require.NoError(t, under.Commit())
			return a.paid == 1
		case <-time.After(50 * time.Millisecond):
		}
	} else {
		redistest.Eventually(t, func() bool { return len(answers) > 0 || s.waits(t) }, "a claim that waits")
	}
	require.NoError(t, under.Commit())
	a := <-answers
	var failure *pgconn.PgError
	if level != sql.LevelDefault && errors.As(a.err, &failure) {
		return failure.Code == "40001" // a serialization failure
	}
	require.NoError(t, a.err)
	return a.paid == 1
}

// waits reports whether a statement for this test's table waits for a lock.
func (s stage) waits(t *testing.T) (does bool) {
	t.Helper()
	err := s.db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_locks waiting
		JOIN pg_locks has ON has.pid = waiting.pid AND has.relation = 'perkey_fences'::regclass WHERE NOT waiting.granted)`).Scan(&does)
	require.NoError(t, err)
	return does
}

// broken sends statements with a piece replaced.
type broken struct {
	sqlfence.Querier
	piece, instead string
	used           *bool
}

func (b broken) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if strings.Contains(query, b.piece) {
		*b.used = true
		query = strings.ReplaceAll(query, b.piece, b.instead)
	}
	return b.Querier.ExecContext(ctx, query, args...)
}

func TestPromises_AreKept(t *testing.T) {
	eachDatabase(t, func(t *testing.T, src source, db *sql.DB) {
		createShop(t, src, db)
		for name, kept := range promises {
			h := holders(t, name, 2)
			s := stage{src: src, db: db, old: h[0], now: h[1], through: func(q sqlfence.Querier) sqlfence.Querier { return q }}
			require.True(t, kept(t, s), name)
		}
	})
}

func TestPromises_MutantsAreCaught(t *testing.T) {
	const check = "UPDATE perkey_fences SET fence = fence WHERE lease_key = $1 AND fence = $2"
	for name, mutant := range map[string]struct {
		piece, instead, promise string
		postgresOnly            bool
	}{
		"any claim":            {" WHERE f.fence <= excluded.fence", "", "an earlier holder cannot claim", false},
		"a claim once":         {"f.fence <= excluded.fence", "f.fence < excluded.fence", "a lease claims again", false},
		"the first claim":      {"DO UPDATE SET fence = excluded.fence WHERE f.fence <= excluded.fence", "DO NOTHING", "a newer holder claims", false},
		"a check at the write": {check, "UPDATE perkey_fences SET fence = fence WHERE lease_key = $1 AND fence <= $2", "a holder that has not claimed is refused", false},
		"any check":            {check, "UPDATE perkey_fences SET fence = fence WHERE lease_key = $1 AND $2 > 0", "an earlier holder is refused", false},
		"a check without lock": {check, "SELECT 1 FROM perkey_fences WHERE lease_key = $1 AND fence = $2", "a claim sees what was under way", true},
		"a check that locks":   {check, "SELECT 1 FROM perkey_fences WHERE lease_key = $1 AND fence = $2 FOR UPDATE", "a claim sees it, or fails, under REPEATABLE READ", true},
	} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, src source, db *sql.DB) {
				if mutant.postgresOnly && src.driver == "sqlite" {
					return
				}
				createShop(t, src, db)
				used := false
				h := holders(t, "order:42", 2)
				s := stage{src: src, db: db, old: h[0], now: h[1], through: func(q sqlfence.Querier) sqlfence.Querier {
					return broken{q, mutant.piece, mutant.instead, &used}
				}}
				require.Contains(t, promises, mutant.promise)
				require.False(t, promises[mutant.promise](t, s), mutant.promise)
				require.True(t, used)
			})
		})
	}
}
