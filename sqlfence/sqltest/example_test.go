package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/sqlfence"
)

// A holder is stopped between its read and its write, and loses its key to another one.
func Example() {
	locker, db, closeAll := connect()
	defer closeAll()

	pay := func(ctx context.Context, id string, work func()) error {
		lease, _ := core.LeaseFrom(ctx)
		if err := sqlfence.Claim(ctx, db, lease); err != nil {
			return err
		}
		var paid bool
		if err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM invoices WHERE id = $1)`, id).Scan(&paid); err != nil || paid {
			return err
		}
		work()
		return sqlfence.Write(context.WithoutCancel(ctx), db, lease, func(tx *sql.Tx) error { // it ignores its ctx
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices (id) VALUES ($1)`, id)
			return err
		})
	}

	ctx := context.Background()
	err := locker.Do(ctx, "order:42", func(stale context.Context) error {
		return pay(stale, "42", func() {
			lease, _ := core.LeaseFrom(stale)
			_, _ = locker.ForceRelease(ctx, "order:42", lease.Fence())
			err := locker.Do(ctx, "order:42", func(ctx context.Context) error {
				return pay(ctx, "42", func() {})
			})
			fmt.Println("the next holder:", err)
		})
	})
	fmt.Println("a newer holder has claimed:", errors.Is(err, sqlfence.ErrStale))
	var invoices int
	_ = db.QueryRowContext(ctx, `SELECT count(*) FROM invoices`).Scan(&invoices)
	fmt.Println("invoices:", invoices)
	// Output:
	// the next holder: <nil>
	// a newer holder has claimed: true
	// invoices: 1
}

// The order's own row has the fence, in a column.
func ExampleExec() {
	locker, db, closeAll := connect()
	defer closeAll()

	ctx := context.Background()
	err := locker.Do(ctx, "order:42", func(ctx context.Context) error {
		lease, _ := core.LeaseFrom(ctx)
		err := sqlfence.Exec(ctx, db, lease, `UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1`, "42")
		if err != nil {
			return err
		}
		var status string
		if err := db.QueryRowContext(ctx, `SELECT status FROM orders WHERE id = $1`, "42").Scan(&status); err != nil {
			return err
		}
		fmt.Println("it is", status)
		return sqlfence.Exec(ctx, db, lease, `UPDATE orders SET status = 'paid' WHERE fence = $1 AND id = $2`, "42")
	})
	fmt.Println(err)
	// Output:
	// it is open
	// <nil>
}

// connect stands in for your Redis, and your database.
func connect() (*core.Locker, *sql.DB, func()) {
	server, err := embedded.Start()
	must(err)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	locker, err := core.New(rdb)
	must(err)
	db, err := sql.Open("sqlite", ":memory:")
	must(err)
	db.SetMaxOpenConns(1) // each connection would have a database of its own
	for _, statement := range []string{
		sqlfence.Table{}.Create(),
		`CREATE TABLE invoices (id text)`,
		`CREATE TABLE orders (id text PRIMARY KEY, status text, fence bigint NOT NULL DEFAULT 0)`,
		`INSERT INTO orders (id, status) VALUES ('42', 'open')`,
	} {
		_, err := db.Exec(statement)
		must(err)
	}
	return locker, db, func() {
		_ = db.Close()
		_ = locker.Close()
		_ = rdb.Close()
		server.Close()
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
