package core

import (
	"context"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
)

// KeyInfo is what Redis knows of a key at one moment; see [Locker.Inspect] and [Locker.List].
type KeyInfo struct {
	Key string
	// At is the time of the report, by the server's clock.
	At time.Time
	// UnknownFormat reports that the key's record was not written by this version of perkey: a
	// newer version has the key, or something else is stored under its name. The key counts as
	// held by one holder, and the rest is not known. See docs/protocol.md, "Format versions".
	UnknownFormat bool
	// Mode is how the key is held; empty if it is free, or UnknownFormat.
	Mode Mode
	// Held is how many hold the key. If that is more than len(Holders) it can
	// include some whose leases have just ended.
	Held int
	// Holders are those that hold the key, in the order of their fences: at most 1,000,
	// or 10 from List.
	Holders []Holder
	// Waiting is how many Lockers wait for the key: each counts once for each mode, however
	// many of its calls wait.
	Waiting int
	// Waiters are the Lockers that wait, in the order in which they will be served:
	// all of them, or the first 10 from List.
	Waiters []Waiter
	// LocalWaiting is how many calls of the reporting Locker wait for the key. It includes those that
	// Redis does not know because the Locker holds the key itself. How many calls of another Locker
	// wait is not known to Redis; see [Locker.Local].
	LocalWaiting int
	// Reserved is for how long the key is still reserved for parked work, which goes before fresh
	// calls; zero if it is not reserved.
	Reserved time.Duration
}

// Free reports whether nobody holds the key. If Lockers wait for a free key, the first of them is
// about to get it, unless the key is reserved.
func (k *KeyInfo) Free() bool { return k.Held == 0 }

// Mode is how a key is held, or wanted.
type Mode string

// The modes that the options of Acquire choose between.
const (
	ModeExclusive Mode = "exclusive"
	ModeShared    Mode = "shared"
	ModeCounted   Mode = "counted"
)

func modeOf(limit int) Mode {
	switch limit {
	case exclusive:
		return ModeExclusive
	case shared:
		return ModeShared
	default:
		return ModeCounted
	}
}

// Participant describes a process that holds a key or waits for it.
type Participant struct {
	// Locker is the Locker's id, see [Locker.ID]; Host and PID name its process.
	Locker, Host string
	PID          int
	Mode         Mode
	// Limit is how many may hold the key together: 1 if exclusive, 0 without limit.
	Limit int
	// Name and ID are those of [Named] or of the [Call], as far as they are stored: 100 bytes
	// of each.
	//
	// For a call that waited they are those of the first of its process's waiting calls
	// when that last asked Redis. For an exclusive grant that was handed over to
	// another call of the same process they are still those of the first call.
	Name, ID string
}

// Holder describes one holder of a key. A lease that was resumed in another process is shown as
// that of the process that took the key.
type Holder struct {
	Participant
	// Fence is the first fence of the grant. If an exclusive grant was handed over within its
	// process the present lease has a greater one, also after a Downgrade; ForceRelease takes either.
	Fence int64
	// Since is when the key was granted, by the server's clock: it is derived from the fence.
	// It can be too late if the server's clock was set back.
	Since time.Time
	// TTL is the length of a renewed lease, and Remaining how much of this one is left. A lease is renewed after a third
	// of its TTL. If less than half remains, the renewal is late, unless the lease was not renewed yet ([WithFirstLease]),
	// has a [MaxHold] or a [MinHold], or was handed over to a call with another TTL. TTL is that of the call of Name and ID,
	// to the millisecond; [Lease.Extend] does not change it. It is 0 if it is not known. Remaining is negative if the
	// record has lost its expiry, by a PERSIST or a RESTORE without TTL: then the key is held until the holder's next
	// renewal, a third of its TTL, says until when. If there is none, only ForceRelease frees it.
	TTL, Remaining time.Duration
}

// Waiter describes a Locker that waits for a key.
type Waiter struct{ Participant }

// KeyPage is one page of the keys in use; see [Locker.List].
type KeyPage struct {
	Keys []*KeyInfo
	// Next is the cursor of the next page; empty after the last one.
	Next string
}

const maxListCount = 1000

// Inspect reports who holds key and who waits for it, of all Lockers, and whether it is reserved.
// It blocks for one round trip, and no longer than ctx allows. The report has no secrets: its
// reader cannot release or use a lease with it.
func (l *Locker) Inspect(ctx context.Context, key string) (*KeyInfo, error) {
	info, err := l.store.Inspect(ctx, key)
	if err != nil {
		return nil, err
	}
	return keyInfo(info, l.waiters), nil
}

// ForceRelease takes the key from the holder that has the fence, and gives it to the next that
// waits. It reports false if no holder has the fence any more: a later holder is never affected.
// The fence is that of Inspect, of an Observer's event, or of the lease itself. An exclusive grant
// that was handed over within its process, and perhaps downgraded then, has several fences: any of
// them will do, and the call that has the key now loses it.
//
// The holder is told by a message: its lease's context ends, with a cause that wraps
// [ErrLeaseLost], but the next holder may have the key a moment before. Until the message arrives
// the holder's process may hand the key over to another of its calls, within 50 ms of the grant;
// that lease ends by the message too. If the message is lost, or the lease was resumed by another
// process, it ends at its next renewal. The work itself may go on: only a fence keeps it from its
// store.
//
// It blocks for one round trip, and no longer than ctx allows. After an error the key may have been
// released.
func (l *Locker) ForceRelease(ctx context.Context, key string, fence int64) (bool, error) {
	first, err := l.store.Force(ctx, key, fence)
	if err != nil || first == 0 {
		return false, err
	}
	l.taken(key, first, forced) // if it was this Locker's, which may not be subscribed
	return true, nil
}

// taken ends the leases of this Locker under a grant that has ended in Redis.
func (l *Locker) taken(key string, fence int64, why loss) {
	for _, h := range l.leases.of(key, fence) {
		_ = l.leases.lose(h, why)
	}
}

// List reports on a page of the keys that are held, waited for or reserved: about count of them, 1
// to 1,000. The cursor is empty for the first page, and Next of the page before for each further
// one. A key that is in use from the first page to the last is on one of the pages, at least;
// another key may be. A page can be short, or empty, and not be the last. Anything else that is
// stored under the prefix is left out.
//
// List uses SCAN. It reads up to 10 names of Redis for each key that is wanted, and reports on up
// to 10 holders and 10 waiters of each. It sends small commands and pauses in between, so that all
// calls of List of a Locker together take at most a twentieth of a Redis: a million names take some
// 20 s. It blocks for as long as that takes; between two commands ctx ends it.
func (l *Locker) List(ctx context.Context, cursor string, count int) (*KeyPage, error) {
	if count < 1 || count > maxListCount {
		return nil, fmt.Errorf("core: %w: List: count %d: want 1 to %d", ErrInvalidOption, count, maxListCount)
	}
	if l.life.Closed() {
		return nil, fmt.Errorf("core: list: %w", ErrClosed)
	}
	infos, next, err := l.store.List(ctx, cursor, count)
	if err != nil {
		return nil, err
	}
	page := &KeyPage{Next: next}
	for _, info := range infos {
		page.Keys = append(page.Keys, keyInfo(info, l.waiters))
	}
	return page, nil
}

func keyInfo(i store.Info, w *waiters) *KeyInfo {
	limits := []int{exclusive, shared} // the first need not wait in Redis
	k := &KeyInfo{Key: i.Key, At: i.At, UnknownFormat: i.UnknownFormat, Held: i.Held, Waiting: i.Waiting, Reserved: i.Reserved}
	for _, h := range i.Holders {
		k.Holders = append(k.Holders, Holder{Participant: participant(h), Fence: h.Fence, Since: h.Since, TTL: h.TTL, Remaining: h.Remaining})
		k.Mode = modeOf(h.Limit)
	}
	for _, p := range i.Waiters {
		k.Waiters = append(k.Waiters, Waiter{participant(p)})
		if p.Locker == w.locker.id {
			limits = append(limits, p.Limit)
		}
	}
	k.LocalWaiting = w.calls(i.Key, limits)
	return k
}

func participant(p store.Participant) Participant {
	return Participant{Locker: p.Locker, Host: p.Host, PID: p.PID, Mode: modeOf(p.Limit), Limit: p.Limit, Name: p.Name, ID: p.ID}
}
