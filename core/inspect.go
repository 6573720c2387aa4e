package core

import (
	"context"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
)

// KeyInfo is what Redis knows of a key at one moment.
type KeyInfo struct {
	Key string
	// At is the server's clock when it looked.
	At time.Time
	// Foreign reports that the key's record was not written by this version of perkey: a
	// newer one has the key, or something else is stored under its name. It counts as held,
	// by one, and the rest is not known. See docs/protocol.md, "Format versions".
	Foreign bool
	// Mode is how the key is held; empty when it is free, or Foreign.
	Mode Mode
	// Held is how many hold the key. Where that is more than len(Holders) it can
	// include some whose leases have just ended.
	Held int
	// Holders are those that hold the key, in the order of their fences: 1,000 at
	// most, or 10 from List.
	Holders []Holder
	// Waiting is how many lockers wait for the key: each once for each mode, however
	// many of its calls wait.
	Waiting int
	// Waiters are the lockers that wait, in the order in which they will be served:
	// all of them, or the first 10 from List.
	Waiters []Waiter
	// LocalWaiting is how many calls of the Locker that was asked wait for the key, also those that
	// Redis does not know of because the Locker holds the key itself. Redis does not know how
	// many calls another Locker has; see [Locker.Local].
	LocalWaiting int
	// Reserved is how long the key is still reserved for parked work, which goes before fresh
	// calls; zero if it is not.
	Reserved time.Duration
}

// Free reports whether nobody holds the key. If lockers wait for a free key,
// the first of them is about to get it, unless the key is reserved.
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

// Participant is a process that holds a key or waits for it, and what for.
type Participant struct {
	// Locker names the Locker, and Host and PID its process.
	Locker, Host string
	PID          int
	Mode         Mode
	// Limit is how many may hold the key together: 1 if exclusive, 0 without limit.
	Limit int
	// Name and ID are what Named or the Call said, as far as it is stored: 100 bytes
	// of each.
	//
	// A call that waited for the key carries what the first of its process's waiting
	// calls said when it last asked Redis. An exclusive grant that was handed over to
	// another call of the same process still shows the first one's.
	Name, ID string
}

// Holder is one that holds a key. A lease that was resumed elsewhere is shown as
// that of the process that took the key.
type Holder struct {
	Participant
	// Fence is that of the grant. An exclusive grant that was handed over within its
	// process has a greater one by now, also after a Downgrade; ForceRelease knows it by either.
	Fence int64
	// Since is when the key was granted, by the server's clock: fences are made of
	// it. It can be late if the server's clock was set back.
	Since time.Time
	// TTL is for how long the lease is renewed, each time that a third of it is over, and Remaining what is left of it. If less
	// than half remains, the renewal is late: unless the lease was not renewed yet (WithFirstLease), has a MaxHold or a MinHold, or was handed over
	// to a call with another TTL. TTL is what the call of Name and ID asked for, to the millisecond: Extend does not change it. It is 0 if it is not known.
	TTL, Remaining time.Duration
}

// Waiter is a locker that waits for a key.
type Waiter struct{ Participant }

// KeyPage is a part of the keys in use.
type KeyPage struct {
	Keys []*KeyInfo
	// Next is the cursor for the next part; empty after the last one.
	Next string
}

const maxListCount = 1000

// Inspect reports who holds key, who waits for it, whatever Locker they are of, and
// whether it is reserved. It blocks for one round trip, and no longer than ctx allows. Nothing in its
// answer lets its reader release or use a lease.
func (l *Locker) Inspect(ctx context.Context, key string) (*KeyInfo, error) {
	info, err := l.store.Inspect(ctx, key)
	if err != nil {
		return nil, err
	}
	return keyInfo(info, l.waiters), nil
}

// ForceRelease takes the key from the holder that has the fence, whoever that is,
// and gives it to the next that waits. It reports false if no holder has the fence any
// more: a later holder is never touched. The fence is one that Inspect, an Observer
// or the lease itself showed; of an exclusive grant that was handed over within its
// process, and perhaps downgraded then, any of its fences will do, and whichever call of it has the key now
// loses it.
//
// The holder is told by a message: its lease's context ends, with a cause that wraps
// ErrLeaseLost, but the next holder may have the key a moment before. Until the message
// arrives the holder's process may hand the key over to another call of its own, within 50 ms
// of the grant; that lease ends by the message too. If the
// message is lost, or the lease was resumed by another process, it ends at its next
// renewal. The work itself may go on: only a fence keeps it from its store.
//
// It blocks for one round trip, and no longer than ctx allows. After an error the
// key may have been released.
func (l *Locker) ForceRelease(ctx context.Context, key string, fence int64) (bool, error) {
	first, err := l.store.Force(ctx, key, fence)
	if err != nil || first == 0 {
		return false, err
	}
	l.taken(key, first, forced) // if it was this Locker's, which may not be subscribed
	return true, nil
}

// taken ends the holds of this Locker on a grant that is over in Redis.
func (l *Locker) taken(key string, fence int64, why loss) {
	for _, h := range l.leases.of(key, fence) {
		_ = l.leases.lose(h, why)
	}
}

// List reports on keys that are held, waited for or reserved: on about count of them, 1 to
// 1,000, beginning with an empty cursor and then with each page's Next. Keys that
// are in use from the first page to the last are on one of them, others may be; a
// key can be on two. A page can be short, or empty, and not be the last. What else is
// stored under the prefix is passed over.
//
// It uses SCAN, looks at up to 10 names of Redis for each key that is wanted, and reports on up to 10 holders
// and 10 waiters of each. It sends little at a time and pauses in between, so that all calls of List of a Locker take a
// twentieth of a Redis at most: going through a million names takes some 20 s. It blocks for as long as that
// takes, no longer than ctx allows between two commands, or until go-redis gives up.
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
	k := &KeyInfo{Key: i.Key, At: i.At, Foreign: i.Foreign, Held: i.Held, Waiting: i.Waiting, Reserved: i.Reserved}
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
