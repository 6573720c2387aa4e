//go:build soak

package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// end is how a primary goes.
type end struct {
	behind time.Duration // by how much its replicas are behind; zero: not at all
	back   bool          // it is stopped, and goes on as a primary when another is elected
}

const (
	loadPrefix  = "load"
	loadLockers = 3
	loadWorkers = 2 // of each locker
	loadKeys    = 6 // on the primary that is killed, and as many elsewhere
	loadQuiet   = 20
	// Calls that are under way when the primary is killed. Their work takes longer
	// than most failovers, and longer than a first lease.
	loadLong = 3
	longWork = 3500 * time.Millisecond
	// A failover takes some seconds, and a key whose grant nobody heard of is free after three more.
	recoveryWait = time.Minute
)

// load is calls of several processes that want a few keys, and write to a store that checks their fences.
type load struct {
	variant acquireVariant
	d       deployment
	lockers []*core.Locker
	victim  *redistest.Server
	names   []string // those on the victim first
	keys    map[string]*loadKey
	free    string // on the victim too, and nobody's

	grants, unavailable, notReplicated atomic.Int64

	// Two primaries grant at the same time, and what one has granted may be handed over
	// within its process after the other's grant.
	split      atomic.Bool
	outOfOrder atomic.Int64 // fences, meanwhile
}

func newLoad(t *testing.T, d deployment, variant acquireVariant) *load {
	t.Helper()
	l := &load{
		variant: variant, d: d, keys: map[string]*loadKey{},
		victim: d.primary(t, core.RecordName(loadPrefix, "0")),
	}
	for range loadLockers {
		l.lockers = append(l.lockers, lockerOn(t, d.client(t, resp3), loadPrefix, core.WithFirstLease(3*time.Second)))
	}
	here, elsewhere := []string{}, []string{}
	for i := 0; len(here) <= loadKeys || len(elsewhere) < loadKeys && d.primaries > 1; i++ {
		name := fmt.Sprint(i)
		if d.primary(t, core.RecordName(loadPrefix, name)) == l.victim {
			here = append(here, name)
		} else {
			elsewhere = append(elsewhere, name)
		}
	}
	l.free = here[loadKeys]
	l.names = append(here[:loadKeys:loadKeys], elsewhere[:min(loadKeys, len(elsewhere))]...)
	for _, name := range l.names {
		l.keys[name] = &loadKey{}
	}
	return l
}

// run puts an end to the primary.
func (l *load) run(t *testing.T, how end) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var quiet []*core.Lease // of keys that nobody else wants, and that the replicas have heard of
	for _, name := range keyNames(loadQuiet) {
		lease := testbed.Take(t, l.lockers[0], name, append(slices.Clone(l.variant.opts), core.LeaseTTL(time.Minute))...)
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		quiet = append(quiet, lease)
	}
	var workers sync.WaitGroup
	for _, locker := range l.lockers {
		for range loadWorkers {
			workers.Go(func() {
				for ctx.Err() == nil {
					l.call(ctx, t, locker, l.names[rand.N(len(l.names))], briefWork)
				}
			})
		}
	}

	time.Sleep(time.Second)
	reconnect := func() {}
	if how.behind > 0 {
		reconnect = cutReplication(t, l.victim, l.d.replicas(t, core.RecordName(loadPrefix, "0")))
		time.Sleep(how.behind)
	}
	l.beginLong(ctx, t, &workers)
	time.Sleep(50 * time.Millisecond) // what can reach the replicas has
	gone := time.Now()
	if how.back {
		l.victim.Pause()
	} else {
		l.victim.Kill()
	}
	reconnect()
	probe, err := acquireInTheEnd(ctx, l.lockers[0], l.free)
	require.NoError(t, err)
	recovery := time.Since(gone)
	require.NoError(t, probe.Release(ctx))
	switch {
	case how.back:
		l.split.Store(true)
		l.victim.Resume()
	case l.variant.heard: // it comes back empty: the new primary may have no other replica
		l.victim.Restart(t)
	}
	l.awaitGrants(t, gone)
	t.Logf("a free key is granted after %s, every held one within %s", recovery.Round(time.Millisecond), time.Since(gone).Round(time.Millisecond))
	time.Sleep(500 * time.Millisecond)

	cancel()
	workers.Wait()
	for _, lease := range quiet {
		for lease.Extend(context.Background(), time.Minute) != nil && assert.NoError(t, lease.Context().Err(), "one that had reached the replicas survives") {
			time.Sleep(20 * time.Millisecond)
		}
		assert.NoError(t, lease.Release(t.Context()))
	}
	for _, locker := range l.lockers {
		require.NoError(t, locker.Shutdown(t.Context()))
	}
	l.requireNoHarm(t, how)
}

// beginLong returns when long work has begun that does not look at its ctx.
func (l *load) beginLong(ctx context.Context, t *testing.T, workers *sync.WaitGroup) {
	t.Helper()
	var underWay sync.WaitGroup
	underWay.Add(loadLong)
	for i := range loadLong {
		workers.Go(func() {
			begun := sync.OnceFunc(underWay.Done)
			defer begun()
			l.call(ctx, t, l.lockers[i%loadLockers], l.names[i], func() (careless bool) {
				begun()
				time.Sleep(longWork)
				return true
			})
		})
	}
	underWay.Wait()
}

// requireNoHarm looks at what became of the grants, and of the writes under them.
func (l *load) requireNoHarm(t *testing.T, how end) {
	t.Helper()
	var sum loadKey
	for name, k := range l.keys {
		assert.Zero(t, k.store.stale, "stale writes that the store took under key %q", name)
		assert.Equal(t, k.store.accepted, k.store.value, "key %q: one for each write that the store took", name)
		sum.told, sum.overlaps, sum.untold = sum.told+k.told, sum.overlaps+k.overlaps, sum.untold+k.untold
		sum.store.accepted, sum.store.refused = sum.store.accepted+k.store.accepted, sum.store.refused+k.store.refused
	}
	t.Logf("of %d grants %d were lost and told, %d overlapped with the next, unknown to %d; "+
		"%d writes taken, %d refused as stale; %d fences out of order; %d calls refused as unavailable, %d of them as not replicated",
		l.grants.Load(), sum.told, sum.overlaps, sum.untold,
		sum.store.accepted, sum.store.refused, l.outOfOrder.Load(), l.unavailable.Load(), l.notReplicated.Load())
	if !how.back { // else the old primary may have taken the release
		assert.Zero(t, sum.untold, "holders that were not told of the next")
	}
	switch {
	case how.behind > 0 && l.variant.heard:
		assert.GreaterOrEqual(t, l.notReplicated.Load(), int64(loadLong), "no replica had heard of them")
	case how.behind > 0:
		assert.GreaterOrEqual(t, sum.told, loadLong, "no replica had heard of them")
	}
	if l.variant.heard && !how.back && l.d.primaries > 1 { // where the one replica that has a grant is the one elected
		assert.Zero(t, sum.overlaps, "the new primary knows of every grant that counts")
	}
}

func briefWork() (careless bool) {
	time.Sleep(rand.N(8 * time.Millisecond))
	return false
}

// call is one piece of work under a key, between a read and a write. Careless work
// does not look at its ctx before it writes.
func (l *load) call(ctx context.Context, t *testing.T, locker *core.Locker, name string, work func() (careless bool)) {
	k := l.keys[name]
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	floor := k.highest()
	lease, err := locker.Acquire(ctx, name, l.variant.opts...)
	if err != nil {
		if errors.Is(err, core.ErrUnavailable) {
			l.unavailable.Add(1)
			if errors.Is(err, core.ErrNotReplicated) {
				l.notReplicated.Add(1)
			}
			time.Sleep(10 * time.Millisecond)
		} else if ctx.Err() == nil {
			t.Errorf("acquire: %v", err)
		}
		return
	}
	l.grants.Add(1)
	if lease.Fence() <= floor && l.split.Load() {
		l.outOfOrder.Add(1)
	} else if lease.Fence() <= floor {
		t.Errorf("key %q: fence %d was granted after %d", name, lease.Fence(), floor)
	}
	k.granted(lease)
	if k.store.claim(lease.Fence()) {
		value := k.store.read()
		if work() || lease.Context().Err() == nil {
			k.store.write(lease.Fence(), value, value+1)
		}
	}
	err = lease.Release(ctx)
	if err != nil && !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLeaseLost) {
		t.Errorf("release: %v", err)
	}
	k.ended(lease, err)
}

// awaitGrants waits until every key was granted again.
func (l *load) awaitGrants(t *testing.T, gone time.Time) {
	t.Helper()
	// What the old primary granted last has been reported by then, and the new one is not elected yet.
	gone = gone.Add(100 * time.Millisecond)
	for name, k := range l.keys {
		for !k.grantedAfter(gone) {
			require.Less(t, time.Since(gone), recoveryWait, "key %q is not granted any more", name)
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// loadKey is what became of a key's grants.
type loadKey struct {
	store fencedStore

	mu       sync.Mutex
	holder   *core.Lease
	fence    int64     // the greatest so far
	last     time.Time // when the last was granted
	told     int       // lost, as their holders were told
	overlaps int       // trusted by their holders when the next was granted
	untold   int       // of those, whose holders never learned

	overlapped *core.Lease // the latest
}

func (k *loadKey) highest() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fence
}

func (k *loadKey) granted(lease *core.Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holder != nil && k.holder.Context().Err() == nil {
		k.overlaps++
		k.overlapped = k.holder
	}
	k.holder, k.fence = lease, max(k.fence, lease.Fence())
	k.last = time.Now()
}

func (k *loadKey) ended(lease *core.Lease, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if errors.Is(err, core.ErrLeaseLost) {
		k.told++
	}
	if k.overlapped == lease && err == nil {
		k.untold++
	}
	if k.holder == lease {
		k.holder = nil
	}
}

func (k *loadKey) grantedAfter(moment time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last.After(moment)
}
