package store

// How a quorum renews and releases.

import (
	"context"
	"sync"
	"time"
)

// Renew asks every node. A lease is renewed if as many nodes as it needs have renewed it, and gone
// if so many do not know it that the others are too few.
func (q *quorum) Renew(ctx context.Context, batch []Renewal) []RenewalReply {
	timeout := maxNodeTimeout
	all := make([]votes, len(batch))
	for i, r := range batch {
		all[i] = votes{nodes: len(q.nodes), needed: q.needed(r.Token)}
		timeout = min(timeout, q.timeoutFor(r.TTL))
	}
	var mu sync.Mutex
	errs := make([]error, len(batch))
	open, late, done := len(batch), false, make(chan struct{})
	count := func(replies []RenewalReply) {
		mu.Lock()
		defer mu.Unlock()
		if late {
			return
		}
		if open -= settle(all, errs, replies); open == 0 {
			late = true
			close(done)
		}
	}
	for _, n := range q.nodes {
		if n.silent(batch[0].Record) || !q.life.Background(func() { count(n.Renew(ctx, batch)) }) {
			count(failures(batch, errSilent))
		}
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	mu.Lock()
	defer mu.Unlock()
	late = true
	replies := make([]RenewalReply, len(batch))
	for i, t := range all {
		replies[i] = RenewalReply{TTL: batch[i].TTL, Owned: t.accepted()}
		if !t.accepted() && !t.denied() {
			replies[i].Err = tooFew(errs[i])
		}
	}
	return replies
}

// settle counts a node's replies as votes on the renewals, and returns how many of them it has settled.
func settle(all []votes, errs []error, replies []RenewalReply) (settled int) {
	for i, r := range replies {
		t := &all[i]
		was := t.settled()
		switch {
		case r.Err != nil:
			errs[i] = r.Err
			t.add(answerFailed)
		case r.Owned:
			t.add(answerYes)
		default:
			t.add(answerNo)
		}
		if !was && t.settled() {
			settled++
		}
	}
	return settled
}

func failures(batch []Renewal, err error) []RenewalReply {
	replies := make([]RenewalReply, len(batch))
	for i := range replies {
		replies[i].Err = err
	}
	return replies
}

func (q *quorum) Extend(ctx context.Context, op, record, token string, ttl time.Duration) (owned, waiting bool, err error) {
	key := KeyOf(q.prefix, record)
	done := make(chan RenewalReply, 1)
	if !q.life.Background(func() { done <- q.Renew(context.WithoutCancel(ctx), []Renewal{{record, token, ttl}})[0] }) {
		return false, false, Closed(op, key)
	}
	select {
	case reply := <-done:
		if reply.Err != nil {
			return false, false, Unavailable(op, key, reply.Err)
		}
		return reply.Owned, reply.Waiting, nil
	case <-ctx.Done():
		return false, false, CallerGone(ctx, op, key)
	case <-q.life.Closing():
		return false, false, Closed(op, key)
	}
}

// Release releases on every node, whether it granted or not. It returns when it is known whether as
// many nodes as it needs had it, and goes on in the background elsewhere.
func (q *quorum) Release(ctx context.Context, req ReleaseRequest) (reply ReleaseReply, err error) {
	if c := q.forget(req.Token); c != nil {
		c.leave()
	}
	var mu sync.Mutex
	t := votes{nodes: len(q.nodes), needed: q.needed(req.Token)}
	late, done := false, make(chan struct{})
	var closed sync.WaitGroup
	for _, n := range q.nodes {
		tell := func() {
			its, failed := ReleaseReply{}, errSilent
			if !n.silent(req.Record) {
				its, failed = n.Release(ctx, req)
			}
			mu.Lock()
			switch {
			case late:
			case failed != nil:
				t.add(answerFailed)
				err = failed
			case its.Owned:
				t.add(answerYes)
			default:
				t.add(answerNo)
			}
			if !late && t.settled() {
				late = true
				close(done)
			}
			mu.Unlock()
			if failed != nil {
				n.Cancel(req, max(q.ttl, ReplyTimeout), nil)
			}
		}
		if !q.life.Background(tell) {
			closed.Go(tell) // the Locker is closed: the caller waits for the rest
		}
	}
	timer := time.NewTimer(maxNodeTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	closed.Wait()
	mu.Lock()
	defer mu.Unlock()
	late = true
	switch {
	case t.denied():
		return ReleaseReply{}, nil
	case t.yes+t.no >= t.needed: // some nodes may have lost it, but not too many
		return ReleaseReply{Owned: true}, nil
	}
	return ReleaseReply{}, tooFew(err)
}
