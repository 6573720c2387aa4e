package sqltest

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/sqlfence"
)

// A recipe pays the next installment of an order: it reads how many are paid, and writes one more payment. It calls
// pause between its steps. The error of a holder that may not write matches sqlfence.ErrStale.
type recipe func(ctx context.Context, db *database, lease *core.Lease, order string, pause func()) error

// recipes are those of the documentation, and the one that it warns of.
var recipes = map[string]recipe{
	"apart":       claimApart,
	"transaction": claimInTheTransaction,
	"column":      claimInAColumn,
	"old":         compareAtTheWrite,
}

// claimApart needs no row of the order's own: what it protects are rows that are not there yet.
func claimApart(ctx context.Context, db *database, lease *core.Lease, order string, pause func()) error {
	if err := db.fences.Claim(ctx, db, lease); err != nil {
		return err
	}
	pause()
	paid, err := installments(ctx, db.q(db), order)
	if err != nil {
		return err
	}
	pause()
	return db.fences.Write(ctx, db.DB, lease, func(tx *sql.Tx) error { return pay(ctx, db.q(tx), lease, order, paid) })
}

// claimInTheTransaction has a transaction for all of it.
func claimInTheTransaction(ctx context.Context, db *database, lease *core.Lease, order string, pause func()) error {
	return inTransaction(ctx, db, func(tx *sql.Tx) error {
		if err := db.fences.Claim(ctx, tx, lease); err != nil {
			return err
		}
		pause()
		paid, err := installments(ctx, db.q(tx), order)
		if err != nil {
			return err
		}
		pause()
		return pay(ctx, db.q(tx), lease, order, paid)
	})
}

// claimInAColumn has the fence in the order's own row.
func claimInAColumn(ctx context.Context, db *database, lease *core.Lease, order string, pause func()) error {
	if err := sqlfence.Exec(ctx, db.q(db), lease, claim, order); err != nil {
		return err
	}
	pause()
	paid, err := installments(ctx, db.q(db), order)
	if err != nil {
		return err
	}
	pause()
	return inTransaction(ctx, db, func(tx *sql.Tx) error {
		if err := sqlfence.Exec(ctx, db.q(tx), lease, write, order); err != nil {
			return err
		}
		return pay(ctx, db.q(tx), lease, order, paid)
	})
}

// compareAtTheWrite claims when it has read already.
func compareAtTheWrite(ctx context.Context, db *database, lease *core.Lease, order string, pause func()) error {
	paid, err := installments(ctx, db.q(db), order)
	if err != nil {
		return err
	}
	pause()
	return inTransaction(ctx, db, func(tx *sql.Tx) error {
		if err := sqlfence.Exec(ctx, db.q(tx), lease, "UPDATE orders SET paid = paid + 1, fence = $1 WHERE id = $2 AND fence <= $1", order); err != nil {
			return err
		}
		return pay(ctx, db.q(tx), lease, order, paid)
	})
}

func inTransaction(ctx context.Context, db *database, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func installments(ctx context.Context, q sqlfence.Querier, order string) (paid int, err error) {
	err = q.QueryRowContext(ctx, "SELECT count(*) FROM payments WHERE order_id = $1", order).Scan(&paid)
	return paid, err
}

func pay(ctx context.Context, tx sqlfence.Querier, lease *core.Lease, order string, installment int) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO payments (order_id, installment, fence) VALUES ($1, $2, $3)", order, installment, lease.Fence())
	return err
}

// createShop makes the tables of the recipes, and orders. Payments are only ever added: they
// are the log of what was written.
func createShop(t *testing.T, db *database, orders ...string) {
	t.Helper()
	id := map[string]string{
		"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
		"pgx":    "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"mysql":  "bigint AUTO_INCREMENT PRIMARY KEY",
	}[db.driver]
	create(t, db, "CREATE TABLE orders (id varchar(100) PRIMARY KEY, paid int NOT NULL, fence bigint NOT NULL)",
		"CREATE TABLE payments (id "+id+", order_id varchar(100) NOT NULL, installment int NOT NULL, fence bigint NOT NULL)")
	for _, order := range orders {
		_, err := db.q(db).ExecContext(t.Context(), "INSERT INTO orders VALUES ($1, 0, 0)", order)
		require.NoError(t, err)
	}
}

// payment is a row of the log. A writer that has read n payments pays installment n.
type payment struct {
	order       string
	installment int
	fence       int64
}

// audit is what a log shows.
type audit struct {
	payments int
	stale    int // written by a holder that had not read the last one, or after a newer holder
	twice    int // of an installment that is paid already
}

func auditOf(log []payment) (a audit) {
	before, newest, seen := map[string]int{}, map[string]int64{}, map[payment]bool{}
	for _, p := range log {
		a.payments++
		if p.installment != before[p.order] || p.fence < newest[p.order] {
			a.stale++
		}
		installment := payment{order: p.order, installment: p.installment}
		if seen[installment] {
			a.twice++
		}
		seen[installment] = true
		before[p.order]++
		newest[p.order] = max(newest[p.order], p.fence)
	}
	return a
}

// auditDatabase reads the log in the order in which it was written: a writer has its order's
// row, or its key's, to itself.
func auditDatabase(t *testing.T, db *database) audit {
	t.Helper()
	rows, err := db.QueryContext(context.Background(), "SELECT order_id, installment, fence FROM payments ORDER BY id")
	require.NoError(t, err)
	defer rows.Close()
	var log []payment
	for rows.Next() {
		var p payment
		require.NoError(t, rows.Scan(&p.order, &p.installment, &p.fence))
		log = append(log, p)
	}
	require.NoError(t, rows.Err())
	return auditOf(log)
}

func TestAudit_SeesStaleWritesAndDoublePayments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		log  []payment
		want audit
	}{
		"in order":                {[]payment{{"a", 0, 1}, {"b", 0, 9}, {"a", 1, 1}, {"a", 2, 2}}, audit{payments: 4}},
		"paid twice":              {[]payment{{"a", 0, 1}, {"a", 0, 2}, {"a", 2, 3}}, audit{payments: 3, stale: 1, twice: 1}},
		"after a newer holder":    {[]payment{{"a", 0, 2}, {"a", 1, 1}}, audit{payments: 2, stale: 1}},
		"without having read one": {[]payment{{"a", 0, 1}, {"a", 2, 1}}, audit{payments: 2, stale: 1}},
	} {
		require.Equal(t, test.want, auditOf(test.log), name)
	}
}
