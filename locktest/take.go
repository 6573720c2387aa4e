package locktest

import (
	"context"
	"errors"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/reservation"
)

var reservations = reservation.Get[*core.Locker, *core.Lease, core.AcquireOption, core.Decision, core.Preference]()

// Hold acquires key for the rival, which holds it until release is called or the test ends. If the
// key is held it waits, and fails the test if it does not get the key within ten seconds. release
// may be called twice. Options choose the mode: core.Shared is a reader.
func (r *Redis) Hold(t TB, key string, opts ...core.AcquireOption) (release func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	lease, err := r.other.Acquire(ctx, key, append([]core.AcquireOption{core.Named("locktest", "Hold")}, opts...)...)
	if err != nil {
		t.Fatalf("locktest: hold: %v", err)
	}
	return keep(t, lease)
}

// Steal takes key from its holders, for the rival, which holds it until release is called or
// the test ends. The holders' contexts end with a cause that wraps core.ErrLeaseLost, now or
// at their next renewal; calls that wait go on waiting. It fails the test if nobody holds the
// key. release may be called twice.
func (r *Redis) Steal(t TB, key string) (release func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	lease, err := r.steal(ctx, key)
	if err != nil {
		t.Fatalf("locktest: steal %q: %v", key, err)
	}
	return keep(t, lease)
}

// keep returns the lease's release, and has it called at the end of the test.
func keep(t TB, lease *core.Lease) (release func()) {
	t.Helper()
	release = func() { _ = lease.Release(context.Background()) }
	t.Cleanup(release)
	return release
}

var errNotHeld = errors.New("nobody holds it")

func (r *Redis) steal(ctx context.Context, key string) (*core.Lease, error) {
	before, err := r.other.Inspect(ctx, key)
	if err != nil {
		return nil, err
	}
	if before.Free() {
		return nil, errNotHeld
	}
	// Of those who wait, nobody gets a key that is reserved.
	if _, err := reservations.Reserve(ctx, r.other, key, waitTimeout); err != nil {
		return nil, err
	}
	lease, robbed, err := r.rob(ctx, key)
	if err != nil {
		return nil, err
	}
	if before.Reserved == 0 {
		err = reservations.Unreserve(ctx, r.other, key, lease.Fence())
		if errors.Is(err, reservation.ErrRenewed) { // for work that was parked meanwhile
			err = nil
		}
	}
	if !robbed {
		err = errors.Join(errNotHeld, err)
	}
	if err != nil {
		_ = lease.Release(ctx)
		return nil, err
	}
	return lease, nil
}

// rob takes key from its holders until it has it. It reports whether there were any.
func (r *Redis) rob(ctx context.Context, key string) (lease *core.Lease, robbed bool, err error) {
	for {
		info, err := r.other.Inspect(ctx, key)
		if err != nil {
			return nil, false, err
		}
		for _, h := range info.Holders {
			taken, err := r.other.ForceRelease(ctx, key, h.Fence)
			if err != nil {
				return nil, false, err
			}
			robbed = robbed || taken
		}
		lease, err := r.other.TryAcquire(ctx, key, reservations.Reserved(waitTimeout), core.Named("locktest", "Steal"))
		if !errors.Is(err, core.ErrConflict) {
			return lease, robbed, err
		}
	}
}
