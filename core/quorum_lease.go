package core

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// renew implements store. It asks every node to renew the leases. A lease is renewed if a majority of nodes
// has, and gone if so many do not know it that the others are no majority.
func (q *quorum) renew(ctx context.Context, batch []renewal) []renewalReply {
	timeout := maxNodeTimeout
	tallies := make([]tally, len(batch))
	for i, r := range batch {
		tallies[i] = tally{nodes: len(q.nodes), majority: q.majority}
		timeout = min(timeout, q.timeoutFor(r.ttl))
	}
	var mu sync.Mutex
	errs := make([]error, len(batch))
	open, late, done := len(batch), false, make(chan struct{})
	count := func(replies []renewalReply) {
		mu.Lock()
		defer mu.Unlock()
		if late {
			return
		}
		for i, r := range replies {
			t := &tallies[i]
			was := t.settled()
			switch {
			case r.err != nil:
				errs[i] = r.err
				t.count(answerFailed)
			case r.owned:
				t.count(answerYes)
			default:
				t.count(answerNo)
			}
			if !was && t.settled() {
				open--
			}
		}
		if open == 0 {
			late = true
			close(done)
		}
	}
	for _, n := range q.nodes {
		if n.silent() || !q.background(func() {
			n.asked()
			replies := n.renew(ctx, batch)
			n.answered(replies[0].err)
			count(replies)
		}) {
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
	replies := make([]renewalReply, len(batch))
	for i, t := range tallies {
		replies[i] = renewalReply{ttl: batch[i].ttl, owned: t.accepted()}
		if !t.accepted() && !t.denied() {
			replies[i].err = noMajority(errs[i])
		}
	}
	return replies
}

func failures(batch []renewal, err error) []renewalReply {
	replies := make([]renewalReply, len(batch))
	for i := range replies {
		replies[i].err = err
	}
	return replies
}

// extend implements store.
func (q *quorum) extend(ctx context.Context, op, record, entry string, ttl time.Duration) (owned, waiting bool, err error) {
	key := keyOf(q.prefix, record)
	done := make(chan renewalReply, 1)
	if !q.background(func() { done <- q.renew(context.WithoutCancel(ctx), []renewal{{record, entry, ttl}})[0] }) {
		return false, false, fmt.Errorf("core: %s %q: %w", op, key, ErrClosed)
	}
	select {
	case reply := <-done:
		if reply.err != nil {
			return false, false, unavailable(op, key, reply.err)
		}
		return reply.owned, reply.waiting, nil
	case <-ctx.Done():
		return false, false, callerGone(ctx, op, key)
	case <-q.closing:
		return false, false, fmt.Errorf("core: %s %q: %w", op, key, ErrClosed)
	}
}

// release implements store: on every node, whether it granted or not. It
// returns when it is known what a majority had, and goes on in the background elsewhere.
func (q *quorum) release(ctx context.Context, req releaseRequest) (reply releaseReply, err error) {
	if c := q.forget(req.entry); c != nil {
		c.leave()
	}
	var mu sync.Mutex
	t := tally{nodes: len(q.nodes), majority: q.majority}
	late, done := false, make(chan struct{})
	var closed sync.WaitGroup
	for _, n := range q.nodes {
		tell := func() {
			its, failed := releaseReply{}, errSilent
			if !n.silent() {
				its, failed = n.release(ctx, req)
			}
			mu.Lock()
			switch {
			case late:
			case failed != nil:
				t.count(answerFailed)
				err = failed
			case its.owned:
				t.count(answerYes)
			default:
				t.count(answerNo)
			}
			if !late && t.settled() {
				late = true
				close(done)
			}
			mu.Unlock()
			if failed != nil {
				n.cancel(req, max(q.ttl, replyTimeout), nil)
			}
		}
		if !q.background(tell) {
			closed.Go(tell) // the Locker is closed: its caller waits for what is left to do
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
		return releaseReply{}, nil
	case t.yes+t.no >= t.majority: // it may have been lost on some, but not on a majority
		return releaseReply{owned: true}, nil
	}
	return releaseReply{}, noMajority(err)
}
