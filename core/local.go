package core

import (
	"cmp"
	"runtime"
	"slices"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
)

// Local is what a [Locker] knows of its own leases and calls, without asking Redis.
type Local struct {
	// Held is how many leases the Locker has. A key that several leases hold together counts for each.
	Held int
	// Waiting is how many of its calls wait for their keys. It includes calls that wait for the
	// first reply of Redis: many, while Redis is slow or away.
	Waiting int
	// Leases are its oldest leases, the oldest first, and Waits the calls that have waited longest,
	// the longest first.
	Leases []LocalLease
	Waits  []LocalWait
}

// LocalLease is one lease in a [Local].
type LocalLease struct {
	// Key, Name and Mode are as in [Outcome]. Name is empty for a key that an AcquireAll holds while it waits for the others.
	Key, Name string
	Mode      Mode
	Fence     int64
	Held      time.Duration
	// TTL is the length of a renewed lease, and Remaining for how long
	// the process still relies on this one. A lease is renewed after a third of its TTL. If less than half remains, the
	// renewal is late, unless the lease was not renewed yet ([WithFirstLease]) or has a [MaxHold].
	TTL, Remaining time.Duration
	// Contended: calls of other processes wait for the key, as far as is known.
	Contended bool
}

// LocalWait is one waiting call in a [Local].
type LocalWait struct {
	// Key, Name, ID and Mode are as in [Outcome].
	Key, Name, ID string
	Mode          Mode
	Waited        time.Duration
}

// queuesAtOnce is how many keys that are waited for are looked at before others may go on.
const queuesAtOnce = 128

// Local reports on the leases and waiting calls of this Locker: how many there are, and the n
// oldest of each. It does not ask Redis, and needs memory for n. It takes some 10 ms for 100,000
// calls that wait. Others are not blocked meanwhile, so the report can miss a call that
// begins or ends to wait just then. A negative n is zero.
func (l *Locker) Local(n int) Local {
	n = max(n, 0)
	now := time.Now()
	local := Local{Held: l.leases.count(), Leases: l.leases.oldest(n, now)}
	local.Waiting, local.Waits = l.waiters.longest(n, now)
	return local
}

// oldest returns the n oldest leases, by the time of their grant.
func (t *leaseTable) oldest(n int, now time.Time) (all []LocalLease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for g := t.byAge.newer; g != &t.byAge && len(all) < n; g = g.newer {
		all = append(all, localLease(g, g.granted().Elapsed(now), now))
	}
	slices.SortStableFunc(all, func(a, b LocalLease) int { return cmp.Compare(b.Held, a.Held) }) // one may be about to be handed over
	return all
}

// link puts a grant in its place by age, nearly always the last. Called with leaseTable.mu held.
func (t *leaseTable) link(g *grant) {
	at := t.byAge.older
	for at != &t.byAge && at.granted() > g.granted() {
		at = at.older
	}
	g.older, g.newer = at, at.newer
	at.newer, g.newer.older = g, g
}

// unlink takes it out. Called with leaseTable.mu held.
func (g *grant) unlink() {
	if g.older != nil {
		g.older.newer, g.newer.older = g.newer, g.older
		g.older, g.newer = nil, nil
	}
}

func (w LocalWait) waited() time.Duration { return w.Waited }

// granted is when the present call was granted the key. Called with leaseTable.mu held.
func (g *grant) granted() schedule.Instant {
	if g.lease != nil {
		return g.lease.granted
	}
	return g.since
}

// localLease is called with leaseTable.mu held.
func localLease(g *grant, held time.Duration, now time.Time) LocalLease {
	l := LocalLease{
		Key: g.key(), Mode: modeOf(g.mode()), Fence: g.fence, Held: held, TTL: g.ttl,
		Remaining: max(g.Deadline().Mono.Sub(now), 0), Contended: g.waiting.Load(),
	}
	if g.lease != nil {
		l.Name, l.Fence = g.lease.name, g.lease.fence
	}
	return l
}

// longest returns how many calls wait, and the n that have waited longest.
func (w *waiters) longest(n int, now time.Time) (waiting int, all []LocalWait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting = w.waiting
	if n == 0 {
		return waiting, nil
	}
	looked := 0
	for _, q := range w.queues {
		if looked++; looked%queuesAtOnce == 0 { // others may change the map meanwhile: what stays in it is seen once
			w.mu.Unlock()
			runtime.Gosched()
			w.mu.Lock()
		}
		left := n
		for c := range q.Calls() {
			to := c.Of.(*waiter)
			if at, among := place(all, n, now.Sub(to.since), LocalWait.waited); among {
				all = put(all, n, at, LocalWait{Key: q.key, Name: to.opts.name, ID: to.opts.id, Mode: modeOf(q.Limit), Waited: now.Sub(to.since)})
			}
			if left--; left == 0 {
				break
			}
		}
	}
	return waiting, all
}

// place is the index at which an item with the time d belongs in all, the n longest in order, and
// whether it is among those.
func place[T any](all []T, n int, d time.Duration, of func(T) time.Duration) (at int, among bool) {
	if len(all) == n && of(all[n-1]) >= d {
		return n, false
	}
	at, _ = slices.BinarySearchFunc(all, d, func(one T, d time.Duration) int { return cmp.Compare(d, of(one)) })
	return at, true
}

// put inserts an item at an index, and keeps n.
func put[T any](all []T, n, at int, one T) []T {
	return slices.Insert(all[:min(len(all), n-1)], at, one)
}

// calls is how many calls of this process wait for key with one of the limits.
func (w *waiters) calls(key string, limits []int) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(limits)
	for _, limit := range slices.Compact(limits) {
		if q := w.queues[queueKey{key, limit}]; q != nil {
			n += q.Len()
		}
	}
	return n
}
