// Package store is the database of the tutorial's shop: what a service has with or without perkey.
package store

import (
	"context"
	"database/sql"
	"errors"

	_ "modernc.org/sqlite" // the driver
)

// Open opens the database in file, and makes its tables.
func Open(ctx context.Context, file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `
		CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, status text NOT NULL);
		CREATE TABLE IF NOT EXISTS carts (id integer PRIMARY KEY, items integer NOT NULL)`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Querier is a *sql.DB or a *sql.Tx.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Status is that of an order: new, if it has none yet.
func Status(ctx context.Context, q Querier, order int64) (status string, err error) {
	err = q.QueryRowContext(ctx, "SELECT status FROM orders WHERE id = $1", order).Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		return "new", nil
	}
	return status, err
}

// SetStatus writes the status of an order.
func SetStatus(ctx context.Context, q Querier, order int64, status string) error {
	_, err := q.ExecContext(ctx, "INSERT INTO orders VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET status = excluded.status", order, status)
	return err
}

// Items is the number of things in a cart.
func Items(ctx context.Context, q Querier, cart int64) (items int, err error) {
	err = q.QueryRowContext(ctx, "SELECT items FROM carts WHERE id = $1", cart).Scan(&items)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return items, err
}

// SetItems writes the number of things in a cart.
func SetItems(ctx context.Context, q Querier, cart int64, items int) error {
	_, err := q.ExecContext(ctx, "INSERT INTO carts VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET items = excluded.items", cart, items)
	return err
}
