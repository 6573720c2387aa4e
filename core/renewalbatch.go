package core

import (
	"cmp"
	"context"
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

const (
	renewalBatch = 1024
	// Batches in flight at once. Beyond that renewals wait their turn; ends of
	// leases do not.
	renewalFlights = 8
)

func (r *renewals) byNode(holds []*hold) map[any][]*hold {
	nodes := map[any][]*hold{}
	for _, h := range holds {
		node := r.locker.store.nodeOf(h.record)
		nodes[node] = append(nodes[node], h)
	}
	return nodes
}

// send renews a batch in the background. When too many batches are in flight
// its holds wait for the next look.
func (r *renewals) send(node any, batch []*hold) {
	r.mu.Lock()
	full := r.flights[node] >= renewalFlights
	if !full {
		r.flights[node]++
	}
	r.mu.Unlock()
	if full {
		r.postpone(batch, max(batch[0].ttl/50, renewalHorizon))
		return
	}
	if !r.locker.background(func() {
		r.renew(batch)
		r.landed(node)
	}) {
		r.landed(node)
	}
}

func (r *renewals) landed(node any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flights[node]--; r.flights[node] == 0 {
		delete(r.flights, node) // nodes come and go
	}
}

// renew sends one pipeline and applies its replies.
func (r *renewals) renew(batch []*hold) {
	ctx := context.Background()
	sent := time.Now()
	asked := renewalsOf(batch)
	r.mu.Lock()
	for i, h := range batch {
		ttl := h.ttl
		if h.lease == nil { // its call may yet fail
			ttl = min(ttl, r.locker.firstLease)
		}
		if h.bounded() {
			ttl = max(min(ttl, h.until.sub(sent)), time.Millisecond)
		}
		asked[i].ttl = ttl
	}
	r.mu.Unlock()
	replies := r.locker.store.renew(ctx, asked)
	var lost []*hold
	var firstErr error
	r.mu.Lock()
	now := time.Now()
	for i, h := range batch {
		reply := replies[i]
		switch {
		case h.state != leaseHeld:
		case reply.err != nil:
			firstErr = cmp.Or(firstErr, reply.err)
			r.putOff(h, now.Add(max(h.ttl/20, renewalHorizon)))
		case !reply.owned && h.renamed(asked[i].entry):
			r.putOff(h, now.Add(renewalHorizon))
		case !reply.owned:
			lost = append(lost, h)
		default:
			h.waiting.Store(reply.waiting)
			h.renewAt = instantOf(renewalTime(sent, reply.ttl))
			if h.bounded() && h.until.sub(sent) <= reply.ttl {
				h.renewAt = 0 // confirmed to its end
			}
			h.trustUntil(later(h.deadline, trust.Until(sent, reply.ttl)))
			r.reschedule(h)
		}
	}
	r.mu.Unlock()
	for _, h := range lost {
		_ = r.lose(h, notOurs)
	}
	r.locker.observer.OnRenewed(ctx, Renewed{Leases: len(batch), Latency: now.Sub(sent), Err: firstErr})
}

// renewalsOf names the batch's records and entries. The entries share one string: a
// process renews thousands a second.
func renewalsOf(batch []*hold) []renewal {
	asked := make([]renewal, len(batch))
	ends := make([]int, len(batch))
	text := make([]byte, 0, 64*len(batch))
	for i, h := range batch {
		text = h.appendHolder(text)
		ends[i] = len(text)
	}
	entries, from := string(text), 0
	for i, h := range batch {
		asked[i] = renewal{record: h.record, entry: entries[from:ends[i]]}
		from = ends[i]
	}
	return asked
}

// postpone puts off the renewal of holds that could not be renewed now.
func (r *renewals) postpone(batch []*hold, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := time.Now().Add(d)
	for _, h := range batch {
		r.putOff(h, at)
	}
}
