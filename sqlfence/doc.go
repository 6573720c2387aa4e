// Package sqlfence rejects the writes of holders that have lost their key, in a database:
// PostgreSQL, SQLite, MySQL or MariaDB, through database/sql.
//
//	func pay(ctx context.Context, db *sql.DB, id string) error {
//		lease, _ := core.LeaseFrom(ctx)
//		if err := sqlfence.Claim(ctx, db, lease); err != nil { // 1. claim
//			return err
//		}
//		status, err := readStatus(ctx, db, id)                 // 2. read
//		if err != nil || status == "paid" {
//			return err
//		}
//		…                                                      // work, for as long as it takes
//		return sqlfence.Write(ctx, db, lease, func(tx *sql.Tx) error {
//			return setPaid(ctx, tx, id)                    // 3. write
//		})
//	}
//
// # What it is for
//
// A holder can lose its lease without knowing it: its process is stopped, or its handler ignores its
// ctx. The next holder reads and writes, and then the first goes on with what it read before. No
// lock service can prevent that, so the database has to. Every lease has a fence, a number
// that grows with each grant of its key ([core.Lease.Fence]). A table in the database
// has a row for each key, with the newest fence that was claimed:
//
//	Claim   before the read: stores the fence, unless a newer one is stored      → or ErrStale: stop
//	Write   a transaction that begins with Check and commits what you write
//	Check   the fence is still stored, and stays until the transaction ends      → or ErrStale: stop
//
// Create the table with your migrations; [Table.Create] is the statement:
//
//	CREATE TABLE IF NOT EXISTS perkey_fences (lease_key text NOT NULL PRIMARY KEY, fence bigint NOT NULL)
//
// For MySQL and MariaDB the methods of [Table] take the place of the functions:
//
//	var fences = sqlfence.Table{Dialect: sqlfence.MySQL}
//
// What you read and write may be any rows of that database, also rows that do not exist yet.
//
// # Why it holds
//
// Claim and Check change the key's row, so the database orders the transactions of one key's holders. A
// write is accepted only if the row still has the fence of its own lease. Then no other lease has claimed
// since the claim, and so since before the read; and no lease writes without a claim. So nothing
// that the holder has read has changed. For that it is enough that any two leases have
// different fences. That fences grow lets the newest holder in, and keeps the others out.
//
// The claim must come before the read. A write that only compares fences, without a claim, accepts a
// stale holder that has read and was stopped, and goes on after the next holder has read and before it
// writes: both pay. Therefore Check refuses a lease that has not claimed ([ErrNotClaimed]),
// even the newest.
//
// # One transaction, or two
//
// Above, the claim is a transaction of its own: nothing is locked during the work. Short
// work can be one transaction, which begins with the claim and needs no Check:
//
//	tx, err := db.BeginTx(ctx, nil)
//	defer tx.Rollback()
//	err = sqlfence.Claim(ctx, tx, lease) // the first statement
//	…                                    // read and write
//	err = tx.Commit()
//
// A process that is stopped inside a transaction keeps the key's row locked, in SQLite the whole
// database: the next holder's claim waits, until its ctx ends. PostgreSQL ends such a
// transaction if idle_in_transaction_session_timeout is set.
//
// Nothing may be read before the claim, also within its transaction. Any isolation level will do.
// Under REPEATABLE READ and SERIALIZABLE the database can refuse a Claim or a Check with a serialization
// failure: then begin again, with the claim. In SQLite set a busy_timeout, or a call that finds
// the database locked fails at once. MySQL's START TRANSACTION WITH CONSISTENT SNAPSHOT reads before
// the claim: do not use it.
//
// # What it does not do
//
//   - Effects outside of the database, such as a call to a payment provider, need an idempotency key
//     of the receiver.
//   - A read from a replica may be older than the claim. Read from the primary.
//   - Writes without a claim, by a program that takes no key, are not rejected.
//   - Leases that hold a key together ([core.Shared], [core.Counted], after a Downgrade) cannot
//     claim: [core.ErrNotExclusive]. Calls that share one lease, under a ctx or by its token, have one
//     fence: it does not tell them apart.
//   - A failover of the database that loses a claim accepts no stale write: a holder whose claim is
//     gone is refused. Writes that the failover loses stay lost.
//   - After a failover of Redis to a server that has lost its data, and whose clock is behind the last grant,
//     fences are smaller than those in the table. Claims are then refused until that clock has
//     caught up, or the rows are removed while nobody works.
//
// With [core.Locker.AcquireAll] each key has its own fence. Acquire each of the set's Keys, in
// their order, under the set's context, which needs no round trip, and claim with that lease.
// A Write with one of the leases checks the others in its transaction.
//
// A holder that is refused has written nothing. Over HTTP that is a 503, and the client may try again;
// a job returns the error, and its next attempt has a new lease.
//
// Each key that was ever claimed has a row. [Table.Prune] removes old rows.
//
// # A column in your own table
//
// If one row stands for all that a key protects, and always exists, it can have the fence
// itself, in a column: see [Exec], which has the same three steps.
package sqlfence
