package sqltest

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/sqlfence"
)

func TestMain(m *testing.M) {
	if os.Getenv(payerVar) != "" {
		runPayer()
		return
	}
	redistest.Main(m, postgres.stop, mariadb.stop)
}

// database is a database of one test's own, perhaps of several processes.
type database struct {
	*sql.DB
	driver, source string
	fences         sqlfence.Table
}

func openDatabase(driver, source string) (*database, error) {
	db, err := sql.Open(driver, source)
	d := &database{DB: db, driver: driver, source: source}
	if driver == "mysql" {
		d.fences.Dialect = sqlfence.MySQL
	}
	return d, err
}

// q lets statements number their parameters, on MySQL too.
func (d *database) q(q sqlfence.Querier) sqlfence.Querier {
	if d.driver == "mysql" {
		return numbered{q}
	}
	return q
}

// eachDatabase runs test on each database, in parallel with others. There is a table for the fences.
func eachDatabase(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	t.Parallel()
	for name, source := range map[string]func(*testing.T) (driver, source string){
		"sqlite": func(t *testing.T) (driver, source string) {
			t.Helper()
			// A statement waits for the transactions of others, for as long as a process may be stopped.
			return "sqlite", "file:" + filepath.Join(t.TempDir(), "db") +
				"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(20000)&_pragma=synchronous(OFF)"
		},
		postgres.name: func(t *testing.T) (driver, source string) {
			t.Helper()
			return postgres.driver, postgres.newSource(t)
		},
		mariadb.name: func(t *testing.T) (driver, source string) {
			t.Helper()
			return mariadb.driver, mariadb.newSource(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, source := source(t)
			db := open(t, driver, source)
			create(t, db, db.fences.Create())
			test(t, db)
		})
	}
}

func open(t *testing.T, driver, source string) *database {
	t.Helper()
	db, err := openDatabase(driver, source)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func create(t *testing.T, db *database, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
}

// numbered is for MySQL, whose parameters are ?, each once: it takes $1 as the others do.
type numbered struct{ sqlfence.Querier }

func (n numbered) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	query, args = unnumber(query, args)
	return n.Querier.ExecContext(ctx, query, args...)
}

func (n numbered) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, args = unnumber(query, args)
	return n.Querier.QueryRowContext(ctx, query, args...)
}

var parameter = regexp.MustCompile(`\$\d`)

func unnumber(query string, args []any) (string, []any) {
	var inOrder []any
	query = parameter.ReplaceAllStringFunc(query, func(p string) string {
		i, _ := strconv.Atoi(p[1:])
		inOrder = append(inOrder, args[i-1])
		return "?"
	})
	if inOrder == nil {
		return query, args
	}
	return query, inOrder
}
