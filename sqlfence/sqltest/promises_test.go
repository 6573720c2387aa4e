package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/sqlfence"
)

// A stage is where a promise is tried: a database, two holders of a key of which the first has
// lost it, and what sends sqlfence's statements.
type stage struct {
	db       *database
	old, now *core.Lease
	through  func(sqlfence.Querier) sqlfence.Querier
}

func (s stage) claim(ctx context.Context, q sqlfence.Querier, lease *core.Lease) error {
	return s.db.fences.Claim(ctx, s.through(q), lease)
}

// check checks in a transaction of its own.
func (s stage) check(t *testing.T, lease *core.Lease) error {
	t.Helper()
	return inTransaction(t.Context(), s.db, func(tx *sql.Tx) error {
		return s.db.fences.Check(t.Context(), s.through(tx), lease)
	})
}

// stageOf is the stage of a key, whose statements go through a Querier.
func stageOf(t *testing.T, db *database, key string, through func(sqlfence.Querier) sqlfence.Querier) stage {
	t.Helper()
	h := holders(t, key, 2)
	return stage{db: db, old: h[0], now: h[1], through: through}
}

// requirePromises requires that all are kept.
func requirePromises(t *testing.T, db *database) {
	t.Helper()
	for name, kept := range promises {
		require.True(t, kept(t, stageOf(t, db, name, func(q sqlfence.Querier) sqlfence.Querier { return q })), name)
	}
}

// refused reports whether there is an error. If so it must be this one.
func refused(t *testing.T, err, with error) bool {
	t.Helper()
	if err != nil {
		require.ErrorIs(t, err, with)
	}
	return err != nil
}

// promises report whether they are kept.
var promises = map[string]func(t *testing.T, s stage) bool{
	"an earlier holder cannot claim": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.now))
		return refused(t, s.claim(t.Context(), s.db, s.old), sqlfence.ErrStale)
	},
	"a lease claims again": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.now))
		return !refused(t, s.claim(t.Context(), s.db, s.now), sqlfence.ErrStale)
	},
	"a newer holder claims": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.old))
		return !refused(t, s.claim(t.Context(), s.db, s.now), sqlfence.ErrStale) && s.check(t, s.now) == nil
	},
	"an earlier holder is refused": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.old))
		require.NoError(t, s.claim(t.Context(), s.db, s.now))
		return refused(t, s.check(t, s.old), sqlfence.ErrStale)
	},
	"a holder that has not claimed is refused": func(t *testing.T, s stage) bool {
		require.NoError(t, s.claim(t.Context(), s.db, s.old))
		return refused(t, s.check(t, s.now), sqlfence.ErrNotClaimed)
	},
	"a claim sees what was under way": func(t *testing.T, s stage) bool {
		return s.readsWhatWasUnderWay(t, sql.LevelDefault)
	},
	"a claim sees it, or fails, under REPEATABLE READ": func(t *testing.T, s stage) bool {
		return s.db.driver == "sqlite" || s.readsWhatWasUnderWay(t, sql.LevelRepeatableRead)
	},
	"a claim sees it, or fails, under SERIALIZABLE": func(t *testing.T, s stage) bool {
		return s.db.driver == "sqlite" || s.readsWhatWasUnderWay(t, sql.LevelSerializable)
	},
	"a first claim sees it, or fails, under REPEATABLE READ": func(t *testing.T, s stage) bool {
		if s.db.driver == "sqlite" {
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
	require.NoError(t, s.db.fences.Check(t.Context(), s.through(tx), s.old))
	return s.sees(t, tx, level)
}

// sees reports whether the new holder, which claims while the transaction of the old one is
// under way, reads what that has written. If not, its claim may fail.
func (s stage) sees(t *testing.T, under *sql.Tx, level sql.IsolationLevel) bool {
	t.Helper()
	key := s.now.Key()
	require.NoError(t, pay(t.Context(), s.db.q(under), s.old, key, 0))
	type answer struct {
		paid int
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		if level == sql.LevelDefault {
			if a.err = s.claim(t.Context(), s.db, s.now); a.err == nil {
				a.paid, a.err = installments(t.Context(), s.db.q(s.db), key)
			}
		} else {
			tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			if a.err = err; err == nil {
				if a.err = s.claim(t.Context(), tx, s.now); a.err == nil {
					a.paid, a.err = installments(t.Context(), s.db.q(tx), key)
				}
				if a.err == nil { // or it could not commit
					a.err = pay(t.Context(), s.db.q(tx), s.now, key, a.paid)
				}
				a.err = errors.Join(a.err, tx.Commit())
			}
		}
		answers <- a
	}()
	if s.db.driver == "sqlite" {
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
	if level != sql.LevelDefault && isSerializationFailure(a.err) {
		return true
	}
	require.NoError(t, a.err)
	return a.paid == 1
}

func isSerializationFailure(err error) bool {
	var (
		inPostgres *pgconn.PgError
		inMySQL    *mysql.MySQLError
	)
	return errors.As(err, &inPostgres) && inPostgres.Code == "40001" || errors.As(err, &inMySQL) && inMySQL.Number == 1213
}

// waits reports whether a statement of this test waits for a lock.
func (s stage) waits(t *testing.T) (does bool) {
	t.Helper()
	query := `SELECT EXISTS (SELECT 1 FROM pg_locks waiting
		JOIN pg_locks has ON has.pid = waiting.pid AND has.relation = 'perkey_fences'::regclass WHERE NOT waiting.granted)`
	if s.db.driver == "mysql" { // who reads innodb_trx more often than every 100 ms sees no change there
		query = `SELECT EXISTS (SELECT 1 FROM information_schema.processlist
			WHERE db = database() AND info LIKE 'INSERT INTO perkey_fences%' AND time_ms > 50)`
	}
	require.NoError(t, s.db.QueryRowContext(t.Context(), query).Scan(&does))
	return does
}

// broken sends statements with a piece replaced.
type broken struct {
	sqlfence.Querier
	piece, instead string
	used           *bool
}

func (b broken) statement(query string) string {
	*b.used = *b.used || strings.Contains(query, b.piece)
	return strings.ReplaceAll(query, b.piece, b.instead)
}

func (b broken) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return b.Querier.ExecContext(ctx, b.statement(query), args...)
}

func (b broken) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return b.Querier.QueryRowContext(ctx, b.statement(query), args...)
}

func TestPromises_AreKept(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *database) {
		createShop(t, db)
		requirePromises(t, db)
	})
}

func TestPromises_MutantsAreCaught(t *testing.T) {
	const check = "UPDATE perkey_fences SET fence = fence WHERE lease_key = $1 AND fence = $2"
	for name, mutant := range map[string]struct {
		piece, instead, promise string
		drivers                 string
	}{
		"any claim":            {" WHERE f.fence <= excluded.fence", "", "an earlier holder cannot claim", "sqlite pgx"},
		"a claim once":         {"f.fence <= excluded.fence", "f.fence < excluded.fence", "a lease claims again", "sqlite pgx"},
		"the first claim":      {"DO UPDATE SET fence = excluded.fence WHERE f.fence <= excluded.fence", "DO NOTHING", "a newer holder claims", "sqlite pgx"},
		"a check at the write": {check, "UPDATE perkey_fences SET fence = fence WHERE lease_key = $1 AND fence <= $2", "a holder that has not claimed is refused", "sqlite pgx"},
		"any check":            {check, "UPDATE perkey_fences SET fence = fence WHERE lease_key = $1 AND CAST($2 AS bigint) > 0", "an earlier holder is refused", "sqlite pgx"},
		"a check without lock": {check, "SELECT 1 FROM perkey_fences WHERE lease_key = $1 AND fence = $2", "a claim sees what was under way", "pgx"},
		"a check that locks":   {check, "SELECT 1 FROM perkey_fences WHERE lease_key = $1 AND fence = $2 FOR UPDATE", "a claim sees it, or fails, under REPEATABLE READ", "pgx"},
		"any claim, MySQL":     {"GREATEST(fence, VALUES(fence))", "VALUES(fence)", "an earlier holder cannot claim", "mysql"},
		"the first, MySQL":     {"GREATEST(fence, VALUES(fence))", "fence", "a newer holder claims", "mysql"},
		"no lock, MySQL":       {" FOR UPDATE", "", "a claim sees what was under way", "mysql"},
	} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *database) {
				if !strings.Contains(mutant.drivers, db.driver) {
					return
				}
				createShop(t, db)
				used := false
				s := stageOf(t, db, "order:42", func(q sqlfence.Querier) sqlfence.Querier { return broken{q, mutant.piece, mutant.instead, &used} })
				require.Contains(t, promises, mutant.promise)
				require.False(t, promises[mutant.promise](t, s), mutant.promise)
				require.True(t, used)
			})
		})
	}
}
