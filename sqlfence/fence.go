package sqlfence

import (
	"context"
	"database/sql"

	"github.com/perkey-go/perkey/core"
)

// Claim makes the lease's fence the newest of its key. Call it *before* you read what the
// lease protects, whether the rows exist yet or not: on a *sql.DB, or in a transaction as
// its first statement. From then on no earlier holder of the key gets past [Check].
//
// An error that matches [ErrStale] means that a newer holder has claimed: stop. After any other error, too, the
// holder must not go on to read and write. A lease that has claimed may claim again, and then has to read again.
//
// Claim waits for the transaction of another holder that has claimed or checked, and has not ended.
// In a transaction it keeps later claims of the key waiting until that ends. The lease must be an
// exclusive one: others fail with core.ErrNotExclusive, and a nil one with core.ErrLeaseLost.
func Claim(ctx context.Context, q Querier, lease *core.Lease) error {
	return Table{}.Claim(ctx, q, lease)
}

// Check makes sure that the lease's claim is still the newest of its key, and remains so
// until the transaction ends: a newer holder's Claim waits for that. Call it before the
// transaction writes, best as its first statement; [Write] does.
//
// An error that matches [ErrStale] means that a newer holder has claimed, one that matches
// [ErrNotClaimed] that this lease has not claimed. After any error the transaction must be
// rolled back. Check refuses a *sql.DB; a *sql.Conn must be in a transaction. To roll back to a savepoint that
// was set before ends what Check or Claim did, in the database and for its locks: do it again.
func Check(ctx context.Context, tx Querier, lease *core.Lease) error {
	return Table{}.Check(ctx, tx, lease)
}

// Write runs fn in a transaction, after a [Check]. It commits if fn returns nil. Otherwise, or if fn panics, it rolls
// back; it returns fn's error. The database has all of fn's writes or none; after an error of the commit itself it
// can be either. For another isolation level begin a transaction yourself, and Check in it.
//
// fn must read and write through its transaction, not through db.
func Write(ctx context.Context, db *sql.DB, lease *core.Lease, fn func(*sql.Tx) error) error {
	return Table{}.Write(ctx, db, lease, fn)
}

// Exec runs a statement whose first parameter is the lease's fence and whose others are args, and
// returns a *[StaleError] if it changed no row. It is for a table of yours that has a column for
// the fence, and so needs no [Table]. The statement runs once; after an error perhaps not at all:
//
//	err := sqlfence.Exec(ctx, db, lease, `UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1`, id)                    // 1. claim
//	err = db.QueryRowContext(ctx, `SELECT status FROM orders WHERE id = $1`, id).Scan(&status)                               // 2. read
//	err = sqlfence.Exec(ctx, db, lease, `UPDATE orders SET status = 'paid' WHERE fence = $1 AND id = $2`, id)                 // 3. write
//
// The claim compares with <=, and comes before the read. A write compares with =, since a lease
// that has not claimed must not write. A transaction that writes other rows too must begin with
// such a statement. The row must exist: a missing one looks like a newer holder's.
//
// SQLite numbers $1 and $2 in the order of the statement, so keep them in order. For MySQL the claim is UPDATE orders
// SET fence = ? WHERE fence <= ? AND id = ?, and args have the fence once more. Its driver must have
// clientFoundRows=true: otherwise a row that has the fence already does not count.
func Exec(ctx context.Context, q Querier, lease *core.Lease, query string, args ...any) error {
	changed, err := int64(0), mayClaim(lease)
	if db, ok := q.(*sql.DB); ok && err == nil { // one connection: a *sql.DB sends a statement again if lib/pq's connection broke, though it may have run
		var conn *sql.Conn
		if conn, err = db.Conn(ctx); err == nil {
			defer func() { _ = conn.Close() }()
			q = conn
		}
	}
	if err == nil {
		changed, err = exec(ctx, q, query, append([]any{lease.Fence()}, args...)...)
	}
	switch {
	case err != nil:
		return failed(ctx, "exec", lease, err)
	case changed < 1:
		return &StaleError{Key: lease.Key(), Fence: lease.Fence()}
	}
	return nil
}
