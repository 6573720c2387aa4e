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

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// acquireVariants are the ways of taking a key under which a primary is killed.
// An option that changes what a failover can lose is added here, and nowhere else.
var acquireVariants = []acquireVariant{
	{name: "as it comes"},
	{name: "on a replica", opts: []core.AcquireOption{core.WaitReplicas(1, 500*time.Millisecond)}, heard: true},
}

type acquireVariant struct {
	name string
	opts []core.AcquireOption
	// A grant was heard of by a replica, or there is none.
	heard bool
}

func TestFailover_APrimaryKilledUnderLoadLosesNoWrite(t *testing.T) {
	t.Parallel()
	for _, variant := range acquireVariants {
		t.Run(variant.name, func(t *testing.T) {
			t.Parallel()
			eachDeployment(t, func(t *testing.T, d deployment) { newLoad(t, d, variant).run(t, end{}) })
		})
		t.Run(variant.name+", replicas behind", func(t *testing.T) {
			t.Parallel()
			eachDeployment(t, func(t *testing.T, d deployment) {
				newLoad(t, d, variant).run(t, end{behind: 100 * time.Millisecond})
			})
		})
	}
}

func TestFailover_APrimaryThatComesBackUnderLoadLosesNoWrite(t *testing.T) {
	t.Parallel()
	for _, variant := range acquireVariants {
		t.Run(variant.name, func(t *testing.T) {
			t.Parallel()
			eachDeployment(t, func(t *testing.T, d deployment) { newLoad(t, d, variant).run(t, end{back: true}) })
		})
	}
}

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
	// A failover takes some seconds, and a key whose grant nobody heard of is free
	// after three more.
	recoveryWait = 20 * time.Second
)

// load is calls of several processes that want a few keys, and write to a store
// that checks their fences.
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
	quiet := map[string]*core.Lease{}
	for _, name := range keyNames(loadQuiet) {
		lease, err := l.lockers[0].TryAcquire(t.Context(), name, append(slices.Clone(l.variant.opts), core.LeaseTTL(time.Minute))...)
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		quiet[name] = lease
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
	everything := time.Since(gone)
	time.Sleep(500 * time.Millisecond)

	cancel()
	stopped := make(chan struct{})
	go func() {
		workers.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(recoveryWait):
		require.Fail(t, "a call is stuck")
	}
	quietLost := 0
	for _, lease := range quiet {
		if err := extendInTheEnd(lease); errors.Is(err, core.ErrLeaseLost) {
			quietLost++
			continue
		}
		require.NoError(t, lease.Release(t.Context()))
	}
	for _, locker := range l.lockers {
		require.NoError(t, locker.Shutdown(t.Context()))
	}

	var sum loadKey
	for name, k := range l.keys {
		assert.Zero(t, k.store.stale, "stale writes that the store took under key %q", name)
		assert.Equal(t, k.store.accepted, k.store.value, "key %q: one for each write that the store took", name)
		sum.told, sum.overlaps, sum.untold = sum.told+k.told, sum.overlaps+k.overlaps, sum.untold+k.untold
		sum.store.accepted, sum.store.refused = sum.store.accepted+k.store.accepted, sum.store.refused+k.store.refused
	}
	t.Logf("a free key is granted after %s, every held one within %s; "+
		"of %d grants %d were lost and told, %d overlapped with the next, unknown to %d; %d of %d quiet leases lost; "+
		"%d writes taken, %d refused as stale; %d fences out of order; %d calls refused as unavailable, %d of them as not replicated",
		recovery.Round(time.Millisecond), everything.Round(time.Millisecond), l.grants.Load(), sum.told, sum.overlaps, sum.untold,
		quietLost, len(quiet), sum.store.accepted, sum.store.refused, l.outOfOrder.Load(), l.unavailable.Load(), l.notReplicated.Load())
	if !how.back { // else the old primary may have taken the release
		assert.Zero(t, sum.untold, "holders that were not told of the next")
	}
	assert.Zero(t, quietLost, "a lease that had reached the replicas survives")
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
	// What the old primary granted last has been reported by then, and the new one is
	// not elected yet.
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

// extendInTheEnd asks until Redis answers.
func extendInTheEnd(lease *core.Lease) error {
	for {
		err := lease.Extend(context.Background(), time.Minute)
		if !errors.Is(err, core.ErrUnavailable) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// acquireInTheEnd asks until Redis answers.
func acquireInTheEnd(ctx context.Context, l *core.Locker, key string, opts ...core.AcquireOption) (*core.Lease, error) {
	for {
		lease, err := l.Acquire(ctx, key, opts...)
		if !errors.Is(err, core.ErrUnavailable) {
			return lease, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestFailover_AGrantThatNoReplicaHeardOfIsLostAndItsHolderIsStopped(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*redistest.Server) (back func()){
		"killed": func(primary *redistest.Server) func() {
			primary.Kill()
			return func() {}
		},
		"stopped": func(primary *redistest.Server) func() {
			primary.Pause()
			return primary.Resume
		},
	}
	for name, put := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testAGrantThatNoReplicaHeardOf(t, put)
		})
	}
}

func testAGrantThatNoReplicaHeardOf(t *testing.T, put func(*redistest.Server) (back func())) {
	t.Helper()
	eachDeployment(t, func(t *testing.T, d deployment) {
		ctx := t.Context()
		holder, other := lockerOn(t, d.client(t, resp3), "p"), lockerOn(t, d.client(t, resp3), "p")
		warm(t, holder)
		warm(t, other)
		primary := d.primary(t, core.RecordName("p", "k"))
		reconnect := cutReplication(t, primary, d.replicas(t, core.RecordName("p", "k")))

		var store fencedStore
		lost, err := holder.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, lost.Extend(ctx, time.Minute), "so that it is sure of itself for long")
		require.True(t, store.claim(lost.Fence()))
		value := store.read()
		back := put(primary)
		reconnect()

		next, err := acquireInTheEnd(ctx, other, "k")
		require.NoError(t, err)
		back()
		sure := lost.Context().Err() == nil
		require.Greater(t, next.Fence(), lost.Fence())
		require.True(t, store.claim(next.Fence()))
		now := store.read()
		require.False(t, store.write(lost.Fence(), value, value+1), "the store knows better than its holder")
		require.True(t, store.write(next.Fence(), now, now+1))
		require.Zero(t, store.stale)

		<-lost.Context().Done()
		require.ErrorIs(t, context.Cause(lost.Context()), core.ErrLeaseLost)
		require.ErrorIs(t, lost.Release(ctx), core.ErrLeaseLost)
		require.NoError(t, next.Extend(ctx, time.Second), "the late release left the new holder alone")
		require.NoError(t, next.Release(ctx))
		t.Logf("the lost lease was still trusted when the next was granted: %t", sure)
	})
}

func TestFailover_AGrantThatNoReplicaHeardOfIsRefused(t *testing.T) {
	t.Parallel()
	eachDeployment(t, func(t *testing.T, d deployment) {
		ctx, record := t.Context(), core.RecordName("p", "k")
		var seen grantCounter
		l := lockerOn(t, d.client(t, resp3), "p", core.WithObserver(&seen))
		other := lockerOn(t, d.client(t, resp3), "p")
		warm(t, l)
		warm(t, other)
		seen.grants.Store(0)
		heard := core.WaitReplicas(1, 200*time.Millisecond)
		primary := d.primary(t, record)
		reconnect := cutReplication(t, primary, d.replicas(t, record))
		for range 2 {
			_, err := l.TryAcquire(ctx, "k", heard)
			requireNotReplicated(t, err)
		}
		requireNotReplicated(t, l.Guard(untilWoken, heard).Do(ctx, core.Call{Key: "k"}, func(context.Context) error {
			t.Error("it runs without the key")
			return nil
		}))
		lease, err := other.TryAcquire(ctx, "k")
		require.NoError(t, err, "nobody has it")
		require.NoError(t, lease.Release(ctx))
		primary.Kill()
		reconnect()
		lease, err = acquireInTheEnd(ctx, other, "k")
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
		require.Zero(t, seen.grants.Load())
		require.Zero(t, seen.lost.Load(), "nobody had it to lose")
	})
}

// grantCounter counts leases as an observer sees them.
type grantCounter struct {
	core.NopObserver
	grants, lost atomic.Int64
}

func (o *grantCounter) OnOutcome(_ context.Context, e core.Outcome) { o.grants.Add(int64(e.Leases)) }

func (o *grantCounter) OnLost(context.Context, core.Lost) { o.lost.Add(1) }

// cutReplication keeps what the primary does from here on from its replicas. They
// run again, and find the link gone, after the returned func.
func cutReplication(t *testing.T, primary *redistest.Server, replicas []*redistest.Server) (resume func()) {
	t.Helper()
	for _, r := range replicas {
		r.Pause() // or they would be back at once
	}
	rdb := redistest.Client(t, &redis.Options{Addr: primary.Addr})
	cut, err := rdb.ClientKillByFilter(t.Context(), "TYPE", "replica").Result()
	require.NoError(t, err)
	require.EqualValues(t, len(replicas), cut)
	return func() {
		for _, r := range replicas {
			r.Resume()
		}
	}
}
