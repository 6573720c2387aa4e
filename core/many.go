package core

// One call takes several keys, all or none: [Locker.AcquireAll] and [Locker.TryAcquireAll].

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/trust"
)

// MaxKeys is how many keys one call can take: 128.
const MaxKeys = 128

// TryAcquireAll takes all keys if all of them are free. If one is held it takes none, and returns a
// [*ConflictError] that names that key. It blocks for one round trip to Redis if one node serves
// all keys, and otherwise for one round trip per key. Keys and options are as for
// [Locker.AcquireAll].
func (l *Locker) TryAcquireAll(ctx context.Context, keys []string, opts ...AcquireOption) (*LeaseSet, error) {
	return l.obtainAll(ctx, keys, false, opts)
}

// AcquireAll takes all keys, and waits until it can have them. It returns when it has all of them,
// when ctx ends, when the Locker is closed, or, with [ErrUnavailable], in the cases in which
// [Locker.Acquire] does. After an error it holds none of them.
//
// The order of keys does not matter, and a key may be repeated; at most [MaxKeys] different keys
// are allowed. Options apply to each lease. Calls for overlapping sets do not deadlock, as long as
// none of them is made under a ctx that holds other keys.
//
// While it waits for a key that is held, it holds no other. If it finds one key after another held,
// it takes them in sorted order instead, and keeps each while it waits for the next: so it is
// served, however busy each key is.
func (l *Locker) AcquireAll(ctx context.Context, keys []string, opts ...AcquireOption) (*LeaseSet, error) {
	return l.obtainAll(ctx, keys, true, opts)
}

func (l *Locker) obtainAll(ctx context.Context, keys []string, wait bool, opts []AcquireOption) (*LeaseSet, error) {
	o, invalid := l.acquireOptions(opts)
	m := multiAttempt{locker: l, ctx: ctx, opts: &o, wait: wait, start: time.Now(), grants: map[string]*grant{}}
	err := errUnwound
	defer func() { m.report(err) }()
	err = m.obtain(keys, invalid)
	return m.set, err
}

// obtain takes the keys: reenter those that ctx holds, then take the others (run) → wait for
// replicas → make the grants leases, until all are held.
func (m *multiAttempt) obtain(keys []string, invalid error) (err error) {
	l, ctx, o := m.locker, m.ctx, m.opts
	keys, err = distinct(keys)
	if err = cmp.Or(invalid, err); err != nil {
		return err
	}
	m.all, m.key = keys, keys[0]
	if ctx.Err() != nil {
		return store.CallerGone(ctx, "acquire", m.key)
	}
	o.what = store.Describe(o.name, o.id, o.ttl)
	set := &LeaseSet{ctx: ctx}
	defer func() {
		if err != nil {
			for _, handle := range set.leases {
				handle.finish()
			}
		}
	}()
	for _, key := range keys {
		lease, err := l.reenter(set.ctx, Call{Key: key, Name: o.name, ID: o.id}, o)
		switch {
		case err != nil:
			m.key = key
			return err
		case lease != nil:
			set.leases, set.ctx = append(set.leases, lease), lease.Context()
		default:
			m.keys = append(m.keys, key)
		}
	}
	if len(m.keys) == 0 {
		set.ctx = setContext{set.ctx, set.leases}
		m.set = set
		return nil
	}
	if !l.life.Open() {
		return store.Closed("acquire", m.keys[0])
	}
	for {
		if err := m.run(); err != nil {
			return err
		}
		if err := m.replicate(); err != nil {
			m.release()
			return err
		}
		if m.adopt(set) {
			m.set = set
			return nil
		}
		m.release()
		if !m.wait {
			return store.Unavailable("acquire", m.keys[0], errors.New("a grant had ended when its reply arrived"))
		}
	}
}

// distinct returns the keys sorted, and each once.
func distinct(keys []string) ([]string, error) {
	for _, key := range keys {
		if err := ValidateKey(key); err != nil {
			return nil, err
		}
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(keys) == 0 || len(keys) > MaxKeys {
		return nil, fmt.Errorf("core: %w: %d different keys: want 1 to %d", ErrInvalidKey, len(keys), MaxKeys)
	}
	return keys, nil
}

// multiAttempt is the state of one call for several keys.
type multiAttempt struct {
	locker *Locker
	ctx    context.Context
	opts   *acquireOptions
	wait   bool
	start  time.Time
	all    []string // sorted
	keys   []string // those of all that its ctx does not hold already
	rounds int

	grants map[string]*grant // what it has so far
	set    *LeaseSet         // the result

	key     string      // the one that was asked for last
	waiting int         // calls for it, if it is held
	waited  bool        // OnWaiting was called
	kind    OutcomeKind // as in attempt
}

// maxRounds is how often a call may wait for one key and then find another one held, before it
// takes its keys in sorted order. A call that waits while it holds keys waits only for a key that
// sorts after all of those, so no circle of calls waits for itself.
const maxRounds = 4

// run takes all keys: try all → release → wait for the one that is held → try all, and after
// maxRounds in sorted order. After an error it has none.
func (m *multiAttempt) run() error {
	for {
		m.rounds++
		err := m.rest()
		if err == nil {
			return nil
		}
		m.release()
		var conflict *ConflictError
		if !m.wait || !errors.As(err, &conflict) {
			return err
		}
		if m.rounds > maxRounds {
			return m.inOrder()
		}
		if m.rounds > 1 { // out of step with a call that holds what this one lacks, and lacks what it holds
			if err := m.pause(backoff.Full(m.rounds, time.Millisecond, 20*time.Millisecond), conflict.Key); err != nil {
				return err
			}
		}
		if err := m.take(conflict.Key, waitForever{}); err != nil {
			return err
		}
	}
}

// rest takes the keys that are missing, without waiting. Its error is a *ConflictError if one is
// held.
func (m *multiAttempt) rest() error {
	var missing []string
	for _, key := range m.keys {
		if m.grants[key] == nil {
			missing = append(missing, key)
		}
	}
	if m.locker.store.Single() && len(missing) > 1 && m.opts.notify == nil {
		return m.together(missing)
	}
	for _, key := range missing {
		if err := m.take(key, nil); err != nil {
			return err
		}
	}
	return nil
}

// inOrder takes one key after the other, and waits for each.
func (m *multiAttempt) inOrder() error {
	for _, key := range m.keys {
		if err := m.take(key, waitForever{}); err != nil {
			m.release()
			return err
		}
	}
	return nil
}

// take takes one key, as a call for it alone does.
func (m *multiAttempt) take(key string, policy ConflictPolicy) error {
	l := m.locker
	a := attempt{
		locker: l, ctx: m.ctx, call: Call{Key: key, Name: m.opts.name, ID: m.opts.id}, policy: policy, opts: *m.opts,
		start: time.Now(), record: store.RecordName(l.prefix, key), multi: m,
	}
	m.key = key
	if err := a.run(); err != nil {
		m.kind, m.waiting = a.kind, a.conflict.Waiting
		return err
	}
	m.grants[key] = a.grant
	return nil
}

// together takes several keys that one node serves, or none of them.
func (m *multiAttempt) together(keys []string) error {
	l, o := m.locker, m.opts
	records := make([]string, len(keys))
	for i, key := range keys {
		records[i] = store.RecordName(l.prefix, key)
	}
	req := store.AcquireRequest{Token: store.NewToken(o.limit, l.id), Lease: o.firstLease(), What: o.what, Sent: time.Now(), Timeout: o.replyTimeout()}
	reply, err := l.store.AcquireAll(m.ctx, records, req)
	switch {
	case err != nil:
		return err
	case reply.Grants == nil:
		return m.refused(keys[reply.Held], reply.Remaining, reply.Queued)
	}
	for i, key := range keys {
		g := l.newGrant(records[i], req.Token, o.limit, reply.Grants[i].Fence, req.Sent, time.Now(), trust.Until(req.Sent, req.Lease), o)
		g.waiting.Store(reply.Grants[i].Waiting)
		if !l.leases.add(g) {
			for _, key := range keys {
				l.waiters.orphaned(key, req.Token, store.AcquireReply{})
			}
			return store.Closed("acquire", key)
		}
		m.grants[key] = g
	}
	return nil
}

// refused returns the error for a key that is held.
func (m *multiAttempt) refused(key string, remaining time.Duration, queued int) error {
	m.key, m.waiting = key, queued
	return &ConflictError{Key: key, Remaining: remaining, Waited: time.Since(m.start), Attempts: m.rounds, Waiting: queued}
}

func (m *multiAttempt) pause(d time.Duration, key string) error {
	switch err := m.locker.life.Pause(m.ctx, d); {
	case err == nil:
		return nil
	case m.ctx.Err() != nil:
		return store.CallerGone(m.ctx, "acquire", key)
	default:
		return fmt.Errorf("core: acquire %q: %w", key, err)
	}
}

// release releases what was taken so far.
func (m *multiAttempt) release() {
	grants := slices.Collect(maps.Values(m.grants))
	clear(m.grants)
	m.locker.discard(m.ctx, grants...)
}

// replicate waits until the grants are on as many replicas as the call asks for.
func (m *multiAttempt) replicate() error {
	var lacking []*grant
	for _, key := range m.keys {
		if g := m.grants[key]; m.opts.replicas > int(g.acks) {
			lacking = append(lacking, g)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	if m.locker.store.Single() {
		return m.locker.replicate(m.ctx, lacking, m.opts.replicas, m.opts.replicaWait)
	}
	return errors.Join(each(lacking, func(g *grant) error {
		return m.locker.replicate(m.ctx, []*grant{g}, m.opts.replicas, m.opts.replicaWait)
	})...)
}

// adopt makes the grants leases of the set, under one ctx. It reports false when one of them has
// ended.
func (m *multiAttempt) adopt(set *LeaseSet) bool {
	all := newCancellation(set.ctx)
	now := time.Now()
	outer, _ := LeaseFrom(set.ctx)
	leases := slices.Clone(set.leases)
	for _, key := range m.keys {
		g := m.grants[key]
		lease := &Lease{grant: g, name: m.opts.name, fence: g.lastFence(), granted: schedule.InstantOf(now)}
		lease.use(all)
		lease.leaseExtra = &leaseExtra{minHold: m.opts.minHold, outer: outer}
		outer = lease
		leases = append(leases, outer)
	}
	slices.SortFunc(leases, func(a, b *Lease) int { return cmp.Compare(a.Key(), b.Key()) })
	ctx := setContext{(*leaseContext)(outer), leases}
	for _, lease := range leases {
		if lease.reentered != nil {
			continue
		}
		lease.set = ctx
		if !m.locker.leases.adopt(lease.grant, lease, now) {
			for _, g := range m.grants {
				m.locker.leases.adopt(g, nil, now)
			}
			all.cancel(context.Canceled)
			return false
		}
	}
	set.leases, set.ctx = leases, ctx
	return true
}
