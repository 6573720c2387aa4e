package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/perkey-go/perkey/core"
)

// Querier is a *sql.Tx, a *sql.DB or a *sql.Conn.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Table is a table in which the newest fence of each key is kept. It stands in the database
// whose rows it protects. The zero Table is the one that [Claim], [Check] and [Write] use.
// Services that share a Table share a Redis and a core.WithPrefix too, or their fences of
// one key would have nothing to do with each other.
//
// A Table is a value, and safe for concurrent use.
type Table struct {
	// Name is the table's name, perhaps with its schema's: letters, digits and
	// underscores, "shop.fences". Default: perkey_fences.
	Name string
}

// Create is the statement that creates the table, for your migrations:
//
//	CREATE TABLE IF NOT EXISTS perkey_fences (lease_key text NOT NULL PRIMARY KEY, fence bigint NOT NULL)
func (t Table) Create() string {
	return "CREATE TABLE IF NOT EXISTS " + t.name() + " (lease_key text NOT NULL PRIMARY KEY, fence bigint NOT NULL)"
}

// Claim is [Claim] in this table.
func (t Table) Claim(ctx context.Context, q Querier, lease *core.Lease) error {
	if err := t.check("claim", lease); err != nil {
		return err
	}
	// A statement that waits for the row of another transaction compares with what that has
	// left there; under REPEATABLE READ it fails instead.
	changed, err := exec(ctx, q, "INSERT INTO "+t.name()+" AS f (lease_key, fence) VALUES ($1, $2)"+
		" ON CONFLICT (lease_key) DO UPDATE SET fence = excluded.fence WHERE f.fence <= excluded.fence", lease.Key(), lease.Fence())
	if err != nil {
		return fmt.Errorf("sqlfence: claim %q: %w", lease.Key(), err)
	}
	if changed == 0 {
		newest, _ := t.newest(ctx, q, lease)
		return &StaleError{Key: lease.Key(), Fence: lease.Fence(), Newest: newest}
	}
	return nil
}

// Check is [Check] in this table.
func (t Table) Check(ctx context.Context, tx Querier, lease *core.Lease) error {
	if err := t.check("check", lease); err != nil {
		return err
	}
	if _, ok := tx.(*sql.DB); ok {
		return fmt.Errorf("sqlfence: check %q: %w: a *sql.DB: want the transaction that writes", lease.Key(), core.ErrInvalidOption)
	}
	// Not a SELECT FOR UPDATE: a transaction under REPEATABLE READ whose claim waits for this
	// one has read already what it reads later, and must fail. It does if the row was changed,
	// and not if it was only locked.
	changed, err := exec(ctx, tx, "UPDATE "+t.name()+" SET fence = fence WHERE lease_key = $1 AND fence = $2", lease.Key(), lease.Fence())
	if err == nil && changed == 0 {
		err = t.refusal(ctx, tx, lease)
	}
	var stale *StaleError
	if err != nil && !errors.As(err, &stale) {
		return fmt.Errorf("sqlfence: check %q: %w", lease.Key(), err)
	}
	return err
}

// refusal says why a lease has no claim.
func (t Table) refusal(ctx context.Context, q Querier, lease *core.Lease) error {
	switch newest, err := t.newest(ctx, q, lease); {
	case err != nil:
		return err
	case newest > lease.Fence():
		return &StaleError{Key: lease.Key(), Fence: lease.Fence(), Newest: newest}
	}
	return fmt.Errorf("%w under this lease: claim before you read, and write under the lease that claimed", ErrNotClaimed)
}

// Write is [Write] in this table.
func (t Table) Write(ctx context.Context, db *sql.DB, lease *core.Lease, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("sqlfence: write %q: %w", lease.Key(), err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := t.Check(ctx, tx, lease); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("sqlfence: write %q: %w", lease.Key(), err)
	}
	return nil
}

// Prune removes the rows of keys whose last claim came under a lease that was granted before
// then, and returns how many there were. A holder whose row is gone is refused with
// ErrNotClaimed, whoever claims next: leave the claims of all who may still work.
func (t Table) Prune(ctx context.Context, q Querier, then time.Time) (removed int64, err error) {
	if err = t.checkName(); err == nil {
		removed, err = exec(ctx, q, "DELETE FROM "+t.name()+" WHERE fence < $1", then.UnixMicro())
	}
	if err != nil {
		return 0, fmt.Errorf("sqlfence: prune: %w", err)
	}
	return removed, nil
}

// newest is the fence that has claimed the lease's key; 0 if none has.
func (t Table) newest(ctx context.Context, q Querier, lease *core.Lease) (fence int64, err error) {
	err = q.QueryRowContext(ctx, "SELECT fence FROM "+t.name()+" WHERE lease_key = $1", lease.Key()).Scan(&fence)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return fence, err
}

const defaultName = "perkey_fences"

var validName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func (t Table) name() string {
	if t.Name == "" {
		return defaultName
	}
	return t.Name
}

func (t Table) checkName() error {
	if !validName.MatchString(t.name()) {
		return fmt.Errorf("%w: Table.Name %q: want letters, digits and underscores, with a schema and a dot before it or not", core.ErrInvalidOption, t.Name)
	}
	return nil
}

// check says whether a lease may ask the table.
func (t Table) check(what string, lease *core.Lease) error {
	err := t.checkName()
	if err == nil {
		err = mayClaim(lease)
	}
	if err != nil {
		return fmt.Errorf("sqlfence: %s %q: %w", what, lease.Key(), err)
	}
	return nil
}

func mayClaim(lease *core.Lease) error {
	switch {
	case lease == nil:
		return fmt.Errorf("there is no lease here: %w", core.ErrLeaseLost)
	case lease.Mode() != core.ModeExclusive:
		// Holders of such a lease have the key at the same time, and would refuse each other.
		return fmt.Errorf("%w: it is %s", core.ErrNotExclusive, lease.Mode())
	}
	return nil
}

// exec returns how many rows a statement has changed.
func exec(ctx context.Context, q Querier, query string, args ...any) (int64, error) {
	result, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
