// Package sqlfence keeps the writes of holders that have lost their key out of a database:
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
// A holder can lose its lease and not know it: its process is stopped, or its handler ignores its ctx. The next
// holder reads and writes, and then the first goes on, with what it read before. No lock service can prevent this, so
// the database has to. Every lease has a fence, a number that grows with each grant of its key ([core.Lease.Fence]).
// A table in the database has a row for each key, with the newest fence that has claimed:
//
//	Claim   before the read: puts the fence there, unless a newer one is there   → or ErrStale: stop
//	Write   a transaction that begins with Check and commits what you write
//	Check   the fence is still there, and stays until the transaction ends       → or ErrStale: stop
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
// Claim and Check change the key's row, so that the transactions of one key's holders have an order. A
// write is let in only if the row still has the fence of its own lease: since the claim, and so since
// before the read, no other lease has claimed, and none writes without a claim. So nobody has changed
// what the holder has read. For this it is enough that two leases have different fences; since fences
// grow, the newest holder gets in, and the others are kept out.
//
// The claim must come before the read. A write that only compares fences, without a claim, lets in a stale holder
// that has read, was stopped, and goes on when the next one has read but not written yet: both pay. Therefore Check
// refuses a lease that has not claimed (ErrNotClaimed), even the newest.
//
// # One transaction, or two
//
// As above, the claim is a transaction of its own: nothing is locked while the work lasts. Short
// work can use a single transaction, which begins with the claim and needs no Check:
//
//	tx, err := db.BeginTx(ctx, nil)
//	defer tx.Rollback()
//	err = sqlfence.Claim(ctx, tx, lease) // the first statement
//	…                                    // read and write
//	err = tx.Commit()
//
// A process that is stopped inside a transaction keeps the key's row locked, in SQLite the whole
// database: the next holder's claim waits, until its ctx ends. PostgreSQL ends such a
// transaction if idle_in_transaction_session_timeout is set. A call by lib/pq whose ctx has ended also waits for the
// server to say so: one that cannot be reached keeps it until TCP gives up, for minutes.
//
// Nothing may be read before the claim, in its transaction either. Any isolation level will do. Under REPEATABLE READ
// and SERIALIZABLE the database can refuse a Claim or a Check with a serialization failure: then begin again, with
// the claim. In SQLite set a busy_timeout, or a call that finds the database locked fails at once. MySQL's START
// TRANSACTION WITH CONSISTENT SNAPSHOT reads before the claim: do not use it.
//
// # What it does not do
//
//   - Effects outside the database, such as a call of a payment provider, need an idempotency key of the receiver.
//   - A read from a replica may be older than the claim. Read from the primary.
//   - Writes of a program that claims nothing are not kept out.
//   - Leases that hold a key together ([core.Shared], [core.Counted], after a Downgrade) cannot
//     claim: core.ErrNotExclusive. Work that shares one lease, under a ctx or by its token, has one
//     fence, and is not kept apart.
//   - A failover of the database that loses a claim lets no stale write in: a holder whose claim is
//     gone is refused. Writes that the database loses are not recovered.
//   - A clock of Redis that is set back while a key is free, or a failover to a server whose clock is behind
//     the last grant and that has lost its data, gives smaller fences than are here. Claims are refused then until that clock has
//     caught up, or the rows are removed while nobody works.
//
// With [core.Locker.AcquireAll] each key has a fence of its own. Acquire each of the set's Keys, in
// their order, under the set's context, which passes straight through, and claim with that lease.
// A Write with one of the leases checks the others in its transaction.
//
// A holder that is refused has written nothing. Over HTTP answer 503, and the client may try again;
// in a job return the error, and the next attempt has its own lease.
//
// Each key that was ever claimed has a row. [Table.Prune] removes old ones.
//
// # A column of yours
//
// If one row stands for all that a key protects, and always exists, the row itself can have the
// fence, in a column: see [Exec], with the same three steps.
package sqlfence
