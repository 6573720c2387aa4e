package sqlfence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ctxerr"
)

// Querier is a *sql.Tx, a *sql.DB or a *sql.Conn.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Table is a database table with the newest fence of each key, in the database whose rows it
// protects. The zero Table is the one that [Claim], [Check] and [Write] use. Services that share a
// Table must share a Redis and a core.WithPrefix, too: otherwise their fences are not comparable.
//
// A Table is a value, and safe for concurrent use.
type Table struct {
	// Name is the table's name, perhaps with its schema's: letters, digits and
	// underscores, "shop.fences". Default: perkey_fences.
	Name string
	// Dialect is the database's SQL. Default: PostgreSQL, which is for SQLite too.
	Dialect Dialect
}

// Create returns the statement that creates the table, for your migrations:
//
//	CREATE TABLE IF NOT EXISTS perkey_fences (lease_key text NOT NULL PRIMARY KEY, fence bigint NOT NULL)
//
// PostgreSQL accepts only keys that are valid UTF-8. Create does not check Name and
// Dialect; the other methods do, and return an error that wraps core.ErrInvalidOption.
func (t Table) Create() string { return t.statement(dialects[t.Dialect].create) }

// Claim is [Claim] in this table.
func (t Table) Claim(ctx context.Context, q Querier, lease *core.Lease) error {
	newest, ok, err := t.ask(ctx, q, lease, dialects[t.Dialect].claim)
	switch {
	case err != nil:
		return failed(ctx, "claim", lease, err)
	case !ok:
		return &StaleError{Key: lease.Key(), Fence: lease.Fence(), Newest: newest}
	}
	return nil
}

// Check is [Check] in this table.
func (t Table) Check(ctx context.Context, tx Querier, lease *core.Lease) error {
	if _, ok := tx.(*sql.DB); ok {
		return fmt.Errorf("sqlfence: check %q: %w: a *sql.DB: want the transaction that writes", lease.Key(), core.ErrInvalidOption)
	}
	newest, ok, err := t.ask(ctx, tx, lease, dialects[t.Dialect].check)
	switch {
	case err != nil:
		return failed(ctx, "check", lease, err)
	case !ok && newest > lease.Fence():
		return &StaleError{Key: lease.Key(), Fence: lease.Fence(), Newest: newest}
	case !ok:
		return fmt.Errorf("sqlfence: check %q: %w under this lease: claim before you read, and write under the lease that claimed", lease.Key(), ErrNotClaimed)
	}
	return nil
}

// Write is [Write] in this table.
func (t Table) Write(ctx context.Context, db *sql.DB, lease *core.Lease, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return failed(ctx, "write", lease, err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := t.Check(ctx, tx, lease); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return failed(ctx, "write", lease, err)
	}
	return nil
}

// Prune removes the rows of keys whose last claim was by a lease granted before then, and returns how many. A holder
// whose row is gone is refused with ErrNotClaimed, so choose a time before every lease that may still be in use.
func (t Table) Prune(ctx context.Context, q Querier, then time.Time) (removed int64, err error) {
	if err = t.valid(); err == nil {
		removed, err = exec(ctx, q, t.statement(dialects[t.Dialect].prune), then.UnixMicro())
	}
	if err != nil {
		return 0, fmt.Errorf("sqlfence: prune: %w", err)
	}
	return removed, nil
}

// ask runs a claim or a check. If that refuses the lease, it returns the fence that is there, or 0.
func (t Table) ask(ctx context.Context, q Querier, lease *core.Lease, statement string) (newest int64, ok bool, err error) {
	if err := errors.Join(t.valid(), mayClaim(lease)); err != nil {
		return 0, false, err
	}
	if statement != "" {
		changed, err := exec(ctx, q, t.statement(statement), lease.Key(), lease.Fence())
		if err != nil || changed > 0 && dialects[t.Dialect].counts {
			return 0, err == nil, err
		}
	}
	err = q.QueryRowContext(ctx, t.statement(dialects[t.Dialect].newest), lease.Key()).Scan(&newest)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return newest, newest == lease.Fence() && !dialects[t.Dialect].counts, err
}

const defaultName = "perkey_fences"

var validName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func (t Table) statement(text string) string {
	return strings.Replace(text, "%s", cmp.Or(t.Name, defaultName), 1)
}

func (t Table) valid() error {
	if !validName.MatchString(cmp.Or(t.Name, defaultName)) {
		return fmt.Errorf("%w: Table.Name %q: want letters, digits and underscores, with a schema and a dot before it or not", core.ErrInvalidOption, t.Name)
	}
	if _, ok := dialects[t.Dialect]; !ok {
		return fmt.Errorf("%w: Table.Dialect %d: want PostgreSQL or MySQL", core.ErrInvalidOption, t.Dialect)
	}
	return nil
}

// mayClaim says whether a lease can be the only one that has its key.
func mayClaim(lease *core.Lease) error {
	switch {
	case lease == nil:
		return fmt.Errorf("there is no lease here: %w", core.ErrLeaseLost)
	case lease.Mode() != core.ModeExclusive:
		return fmt.Errorf("%w: it is %s", core.ErrNotExclusive, lease.Mode())
	}
	return nil
}

// failed makes an error, which is that of an ended ctx too: lib/pq, and a transaction that ended with it, say something else.
func failed(ctx context.Context, op string, lease *core.Lease, err error) error {
	if ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%w: %w", ctxerr.Of(ctx), err)
	}
	return fmt.Errorf("sqlfence: %s %q: %w", op, lease.Key(), err)
}

// exec returns how many rows a statement has changed.
func exec(ctx context.Context, q Querier, query string, args ...any) (int64, error) {
	result, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
