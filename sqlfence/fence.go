package sqlfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/perkey-go/perkey/core"
)

// Claim makes the lease's fence the newest of its key. Call it *before* you read what the lease
// protects, whether the rows exist yet or not: on a *sql.DB, or in a transaction as its first
// statement. From then on [Check] refuses every earlier holder of the key.
//
// An error that matches [ErrStale] means that a newer holder has claimed: stop. After any other
// error, too, the holder must not go on to read and write. A lease that has claimed may claim
// again, and then has to read again.
//
// Claim waits for a transaction of another holder that has claimed or checked and has not ended. In
// a transaction it keeps later claims of the key waiting until that ends. The lease must be
// exclusive: for another Claim returns [core.ErrNotExclusive], and for a nil one
// [core.ErrLeaseLost].
func Claim(ctx context.Context, q Querier, lease *core.Lease) error {
	return Table{}.Claim(ctx, q, lease)
}

// Check makes sure that the lease's claim is still the newest of its key, and remains so until the
// transaction ends: a newer holder's Claim waits for that. Call it before the transaction writes,
// best as its first statement; [Write] does.
//
// An error that matches [ErrStale] means that a newer holder has claimed. One that matches
// [ErrNotClaimed] means that this lease has not claimed. After any error the transaction must be
// rolled back. Check refuses a *sql.DB; a *sql.Conn must be in a transaction.
func Check(ctx context.Context, tx Querier, lease *core.Lease) error {
	return Table{}.Check(ctx, tx, lease)
}

// Write runs fn in a transaction, after a [Check]. It commits if fn returns nil. Otherwise it rolls
// back and returns fn's error; it also rolls back if fn panics. Either all that fn wrote is in the
// database, or none of it; after an error of the commit itself it is not known which. For another
// isolation level begin a transaction yourself, and Check in it.
//
// fn must read and write through its transaction: it must not use db.
func Write(ctx context.Context, db *sql.DB, lease *core.Lease, fn func(*sql.Tx) error) error {
	return Table{}.Write(ctx, db, lease, fn)
}

// Exec runs a statement on a table of your own that has a column for the fence, in place of a
// [Table]. The statement's first parameter is the lease's fence, and args are the others. If it
// changes no row, Exec returns a [*StaleError]:
//
//	err := sqlfence.Exec(ctx, db, lease, `UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1`, id)                    // 1. claim
//	err = db.QueryRowContext(ctx, `SELECT status FROM orders WHERE id = $1`, id).Scan(&status)                               // 2. read
//	err = sqlfence.Exec(ctx, db, lease, `UPDATE orders SET status = 'paid' WHERE fence = $1 AND id = $2`, id)                 // 3. write
//
// The claim has <=, and comes before the read. A write has =, since a lease that has not claimed
// must not write. A transaction that also writes other rows begins with such a statement. The row
// must exist: a missing row looks like a newer holder's.
//
// SQLite numbers $1 and $2 as they appear in the statement, so keep them in order. For MySQL the
// claim is UPDATE orders SET fence = ? WHERE fence <= ? AND id = ?, and args have the fence once
// more. Its driver must have clientFoundRows=true: otherwise a row that already has the fence does
// not count.
func Exec(ctx context.Context, q Querier, lease *core.Lease, query string, args ...any) error {
	err := mayClaim(lease)
	if err != nil {
		return fmt.Errorf("sqlfence: exec %q: %w", lease.Key(), err)
	}
	changed, err := exec(ctx, q, query, append([]any{lease.Fence()}, args...)...)
	if err != nil {
		return fmt.Errorf("sqlfence: exec %q: %w", lease.Key(), err)
	}
	if changed < 1 {
		return &StaleError{Key: lease.Key(), Fence: lease.Fence()}
	}
	return nil
}
