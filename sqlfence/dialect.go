package sqlfence

// Dialect is the SQL of a database.
type Dialect int

const (
	// PostgreSQL is for PostgreSQL and SQLite. It is the default.
	PostgreSQL Dialect = iota
	// MySQL is for MySQL 8 and MariaDB, in tables of InnoDB.
	MySQL
)

// statements are the statements of a Table. %s is its name.
type statements struct {
	create string
	claim  string // stores the fence, unless a newer one is stored
	check  string // changes the row if the fence is stored
	newest string // reads the stored fence
	prune  string
	// counts: claim and check change no row if a lease is refused, and one row otherwise.
	counts bool
}

var dialects = map[Dialect]statements{
	PostgreSQL: {
		create: "CREATE TABLE IF NOT EXISTS %s (lease_key text NOT NULL PRIMARY KEY, fence bigint NOT NULL)",
		// If it waits for another transaction's row, it compares with what that transaction commits; under
		// REPEATABLE READ it fails instead.
		claim: "INSERT INTO %s AS f (lease_key, fence) VALUES ($1, $2)" +
			" ON CONFLICT (lease_key) DO UPDATE SET fence = excluded.fence WHERE f.fence <= excluded.fence",
		// A SELECT FOR UPDATE would not do: a transaction under REPEATABLE READ whose claim waits for this one
		// already has its snapshot, and must fail. It fails if the row was changed, and not if it was only locked.
		check:  "UPDATE %s SET fence = fence WHERE lease_key = $1 AND fence = $2",
		newest: "SELECT fence FROM %s WHERE lease_key = $1",
		prune:  "DELETE FROM %s WHERE fence < $1",
		counts: true,
	},
	// The number of changed rows says little there: it is 0 if the fence is the same, and another
	// number with clientFoundRows. So the fence is read, and its row locked: a transaction that
	// waits for the lock does not have its snapshot yet.
	MySQL: {
		create: "CREATE TABLE IF NOT EXISTS %s (lease_key varbinary(512) NOT NULL PRIMARY KEY, fence bigint NOT NULL) ENGINE = InnoDB",
		claim: "INSERT INTO %s (lease_key, fence) VALUES (?, ?)" +
			" ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))",
		newest: "SELECT fence FROM %s WHERE lease_key = ? FOR UPDATE",
		prune:  "DELETE FROM %s WHERE fence < ?",
	},
}
