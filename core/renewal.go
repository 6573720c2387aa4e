package core

// The renewal loop: one goroutine renews the leases of a Locker in time, and ends those that expire.

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/observing"
)

const (
	renewalBatch = 1024 // the most leases in a batch
	// The most batches in flight to a node. Further renewals wait; ends of leases do not.
	renewalFlights = store.RenewalFlights
)

// renewals is the renewal loop of a Locker: take what has expired or is due → end the one, send the
// other → sleep until the next is due. It is one goroutine, which never waits for Redis itself, so
// that a slow server cannot keep it from ending a lease; and renewals for one node of a Cluster do
// not wait for those of another.
type renewals struct {
	locker *Locker
	timer  *time.Timer // fires when run has to look at the table

	mu      sync.Mutex
	flights map[any]int // batches in flight, by node
}

func newRenewals(l *Locker) *renewals {
	return &renewals{locker: l, timer: time.NewTimer(time.Hour), flights: map[any]int{}}
}

// wake sets when run looks at the table next. It only sets the timer: to wake the goroutine now
// would cost every first lease a switch of threads.
func (r *renewals) wake(at schedule.Instant) { r.timer.Reset(at.Sub(time.Now())) }

func (r *renewals) run() {
	defer r.timer.Stop()
	for {
		expired, due := r.locker.leases.next(time.Now())
		for _, e := range expired {
			r.locker.end(e.grant, e.lease, lost(e.grant.key(), ranOut))
		}
		for node, grants := range r.byNode(due) {
			for len(grants) > 0 {
				n := min(len(grants), renewalBatch)
				r.send(node, grants[:n])
				grants = grants[n:]
			}
		}

		select {
		case <-r.locker.life.Over():
			return
		case <-r.timer.C:
		}
	}
}

func (r *renewals) byNode(grants []*grant) map[any][]*grant {
	nodes := map[any][]*grant{}
	for _, g := range grants {
		node := r.locker.store.NodeOf(g.record)
		nodes[node] = append(nodes[node], g)
	}
	return nodes
}

// send renews a batch in the background. If too many batches are in flight its grants are postponed
// a little.
func (r *renewals) send(node any, batch []*grant) {
	r.mu.Lock()
	full := r.flights[node] >= renewalFlights
	if !full {
		r.flights[node]++
	}
	r.mu.Unlock()
	if full {
		r.locker.leases.postpone(batch, max(batch[0].ttl/50, schedule.Horizon))
		return
	}
	if !r.locker.life.Background(func() {
		r.renew(batch)
		r.finished(node)
	}) {
		r.finished(node)
	}
}

func (r *renewals) finished(node any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flights[node]--; r.flights[node] == 0 {
		delete(r.flights, node) // nodes come and go
	}
}

// renew sends one pipeline and applies its replies.
func (r *renewals) renew(batch []*grant) {
	ctx := context.Background()
	sent := time.Now()
	asked := renewalsOf(batch)
	r.locker.leases.lengths(asked, batch, r.locker.firstLease, sent)
	replies := r.locker.store.Renew(ctx, asked)
	now := time.Now()
	gone, err := r.locker.leases.answered(batch, asked, replies, sent, now)
	for _, g := range gone {
		_ = r.locker.leases.lose(g, notOurs)
	}
	observing.TellAside(ctx, nil, "core", func() {
		r.locker.observer.OnRenewed(ctx, Renewed{Leases: len(batch), Latency: now.Sub(sent), Err: err})
	})
}

// renewalsOf makes the requests of a batch. The tokens share one string: a process renews thousands
// a second.
func renewalsOf(batch []*grant) []store.Renewal {
	asked := make([]store.Renewal, len(batch))
	ends := make([]int, len(batch))
	text := make([]byte, 0, 64*len(batch))
	for i, g := range batch {
		text = g.appendToken(text)
		ends[i] = len(text)
	}
	tokens, from := string(text), 0
	for i, g := range batch {
		asked[i] = store.Renewal{Record: g.record, Token: tokens[from:ends[i]]}
		from = ends[i]
	}
	return asked
}

// renewalTime is when a lease of ttl that was requested at sent is renewed: after a third, less a
// little at random, so that leases granted together do not stay together. It is rounded down, so
// that many leases need few batches: a batch costs as much as a hundred leases in it.
func renewalTime(sent time.Time, ttl time.Duration) time.Time {
	third := max(ttl, 0) / 3 // a grant can be over by the time it is looked at
	step := max(third/16, min(third/4, renewalStep))
	at := sent.Add(third - rand.N(third/16+1))
	return at.Add(-time.Duration(at.UnixNano() % int64(step+1)))
}

// renewalStep is the time between two batches of leases of 3 to 12 s.
const renewalStep = 250 * time.Millisecond
