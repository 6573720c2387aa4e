package store

// How a quorum grants a key.

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// quorumAttempt is one token's acquire on all nodes: ask all → enough granted → agree on a fence,
// else withdraw. Once enough have granted, a node that replies late keeps the token: to cancel it
// there could take it from a node that counts by now, since a renewal found it. So a token is
// cancelled only when it is to hold nothing any more.
type quorumAttempt struct {
	quorum  *quorum
	req     AcquireRequest
	gone    chan struct{} // ends go-redis's own retries
	stopped sync.Once

	mu      sync.Mutex
	replies []nodeReply // by node
	votes   votes
	closed  bool // the vote is over
	over    bool // the token is to hold nothing any more
	untaken bool // if enough nodes grant it, no call takes that
	decided chan struct{}
}

type nodeReply struct {
	in    bool // the node has answered
	reply AcquireReply
	err   error
}

func (q *quorum) Acquire(ctx context.Context, req AcquireRequest, stop <-chan struct{}) (reply AcquireReply, stopped bool, err error) {
	c := &quorumAttempt{
		quorum: q, req: req, gone: make(chan struct{}), decided: make(chan struct{}),
		replies: make([]nodeReply, len(q.nodes)), votes: votes{nodes: len(q.nodes), needed: q.needed(req.Token)},
	}
	for i := range q.nodes {
		c.ask(ctx, i, req)
	}
	if stopped, err = c.waitFor(ctx, c.decided, stop, c.expire); err == nil && !stopped {
		if reply, err = c.outcome(); err != nil {
			err = Unavailable("acquire", c.key(), err)
		}
	}
	if reply.Granted {
		reply.Fence, stopped, err = c.agree(ctx, stop)
	}
	if reply.Granted && err == nil && !stopped {
		err = late(ctx, c.key(), req.Sent, req.Lease)
	}
	if err != nil || stopped || !reply.Granted {
		c.withdraw()
	}
	return reply, stopped, err
}

func (c *quorumAttempt) key() string { return KeyOf(c.quorum.prefix, c.req.Record) }

// waitFor waits until done is closed; at the time-out it calls expire, which must close it. It
// returns early at stop, and when the caller cannot wait any longer.
func (c *quorumAttempt) waitFor(ctx context.Context, done, stop <-chan struct{}, expire func()) (stopped bool, err error) {
	timer := time.NewTimer(min(c.quorum.timeoutFor(c.req.Lease), c.req.Timeout))
	defer timer.Stop()
	for {
		select {
		case <-done:
			return false, nil
		case <-stop:
			return true, nil
		case <-ctx.Done():
			return false, CallerGone(ctx, "acquire", c.key())
		case <-timer.C:
			expire()
		case <-c.quorum.life.Closing():
			return false, Closed("acquire", c.key())
		}
	}
}

// ask asks one node.
func (c *quorumAttempt) ask(ctx context.Context, i int, req AcquireRequest) {
	n := c.quorum.nodes[i]
	cmd := n.acquireCommand(ctx, &req)
	cmd.ctx.gone = c.gone
	n.submit(cmd, func(r result) {
		if r.late() {
			c.ask(ctx, i, req.anew())
			return
		}
		reply, err := parseAcquire(r)
		r.said(reply.time())
		c.count(i, reply, err)
	})
}

// count takes the reply of one node.
func (c *quorumAttempt) count(i int, reply AcquireReply, err error) {
	c.mu.Lock()
	c.replies[i] = nodeReply{true, reply, err}
	over, untaken := c.over, c.unclaimed()
	if !c.closed {
		switch {
		case err != nil:
			c.votes.add(answerFailed)
		case reply.Granted:
			c.votes.add(answerYes)
		default:
			c.votes.add(answerNo)
		}
		c.decide()
	}
	all := !slices.ContainsFunc(c.replies, func(v nodeReply) bool { return !v.in })
	c.mu.Unlock()
	if untaken {
		c.quorum.nodes[i].events.Unclaimed(c.key())
	}
	if over {
		c.cancel(i)
	}
	if all {
		c.quorum.forget(c.req.Token)
	}
}

// decide ends the vote as soon as enough nodes have granted; or too few can, and it is known
// whether because of holders or because nodes do not reply. Called with mu held.
func (c *quorumAttempt) decide() {
	t := &c.votes
	hopeless := t.yes+t.pending() < t.needed
	if t.accepted() || t.unknown() || hopeless && t.yes+t.no >= t.needed {
		c.closed = true
		close(c.decided)
	}
}

func (c *quorumAttempt) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.votes.expire()
		c.decide()
	}
}

// outcome is the result of the vote.
func (c *quorumAttempt) outcome() (reply AcquireReply, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.votes.accepted():
		if slices.ContainsFunc(c.replies, func(v nodeReply) bool { return !v.in }) {
			c.quorum.retain(c)
		}
		return AcquireReply{Granted: true}, nil
	case c.votes.unknown():
		for _, v := range c.replies {
			err = cmp.Or(err, v.err)
		}
		return reply, tooFew(err)
	}
	// The key can be had when the leases have ended on so many nodes that these and those that granted are enough.
	var ends []time.Duration
	for _, v := range c.replies {
		if v.in && v.err == nil && !v.reply.Granted {
			ends = append(ends, v.reply.Remaining)
			reply.Queued = max(reply.Queued, v.reply.Queued)
		}
	}
	slices.Sort(ends)
	if short := c.votes.needed - c.votes.yes; len(ends) > 0 {
		reply.Remaining = ends[min(short, len(ends))-1]
	}
	return reply, nil
}

// agree finds the fence: the greatest of the grants → raise it on nodes that do not know it → until
// a majority knows it. Each node has granted its own fence, greater than every one that it knows.
// The greatest of a majority is greater than every earlier grant's, since two majorities have a
// node in common. For the next majority to know it in turn, a majority must know it before it is
// used: the nodes that granted it, or have reserved it with their block, know it already. To tell
// the others costs a round trip.
func (c *quorumAttempt) agree(ctx context.Context, stop <-chan struct{}) (fence int64, stopped bool, err error) {
	q := c.quorum
	fences := map[*node]int64{}
	c.mu.Lock()
	for i, v := range c.replies {
		if v.in && v.err == nil && v.reply.Granted {
			fences[q.nodes[i]] = v.reply.Fence
			fence = max(fence, v.reply.Fence)
		}
	}
	c.mu.Unlock()
	for round := 0; ; round++ {
		know := 0
		for _, its := range fences {
			if its == fence || LimitOf(c.req.Token) == Exclusive && its+FenceBlock >= fence+int64(q.Fences()) {
				know++
			}
		}
		if know >= q.majority {
			return fence, false, nil
		}
		if round > 0 {
			// Other calls raise theirs at the same time: with random steps one of them wins.
			fence += rand.Int64N(1 << min(round, 16))
		}
		if fence, stopped, err = c.raise(ctx, stop, fences, fence); stopped || err != nil {
			return 0, stopped, err
		}
	}
}

// raise asks the nodes that granted to raise their fences to fence at least, and records the fences
// that they have then. It returns fence if a majority has it, else the greatest.
func (c *quorumAttempt) raise(ctx context.Context, stop <-chan struct{}, fences map[*node]int64, fence int64) (raised int64, stopped bool, err error) {
	q := c.quorum
	var mu sync.Mutex
	replies := map[*node]int64{}
	t := votes{nodes: len(fences), needed: q.majority}
	late, done := false, make(chan struct{})
	settle := func() {
		if !late && (t.accepted() || t.unknown() || t.pending() == 0) {
			late = true
			close(done)
		}
	}
	for n := range fences {
		cmd := n.command(ctx, raiseScript, false, c.req.Record, c.req.Token, fence)
		n.submit(cmd, func(r result) {
			mu.Lock()
			defer mu.Unlock()
			its, ok := r.val.(int64)
			switch {
			case r.err != nil || !ok || its == 0: // its grant is over already
				t.add(answerFailed)
			case its == fence:
				t.add(answerYes)
				replies[n] = its
			default:
				t.add(answerNo)
				replies[n] = its
			}
			settle()
		})
	}
	stopped, err = c.waitFor(ctx, done, stop, func() {
		mu.Lock()
		defer mu.Unlock()
		t.expire()
		settle()
	})
	if stopped || err != nil {
		return 0, stopped, err
	}
	mu.Lock()
	defer mu.Unlock()
	if t.unknown() {
		return 0, false, Unavailable("acquire", c.key(), tooFew(nil))
	}
	clear(fences)
	raised = fence
	for n, its := range replies {
		fences[n] = its
		if !t.accepted() {
			raised = max(raised, its)
		}
	}
	return raised, false, nil
}

// withdraw releases what the token has, or will have, on every node except those that refused it.
func (c *quorumAttempt) withdraw() {
	c.mu.Lock()
	c.over, c.untaken = true, true
	untaken := c.unclaimed()
	var held []int
	for i, v := range c.replies {
		if v.in && (v.err != nil || v.reply.Granted) {
			held = append(held, i)
		}
	}
	c.mu.Unlock()
	if untaken {
		c.quorum.nodes[0].events.Unclaimed(c.key())
	}
	c.quorum.forget(c.req.Token)
	c.stopRetries()
	for _, i := range held {
		c.cancel(i)
	}
}

// unclaimed reports, once, that enough nodes have granted what no call takes. Called with mu held.
func (c *quorumAttempt) unclaimed() bool {
	granted := 0
	for _, v := range c.replies {
		if v.in && v.err == nil && v.reply.Granted {
			granted++
		}
	}
	if !c.untaken || granted < c.votes.needed {
		return false
	}
	c.untaken = false
	return true
}

// leave ends the attempt of a token that is being released everywhere: nodes that have not replied
// yet may grant it after the release.
func (c *quorumAttempt) leave() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.stopRetries()
}

// stopRetries ends go-redis's retries of requests whose replies no call needs.
func (c *quorumAttempt) stopRetries() { c.stopped.Do(func() { close(c.gone) }) }

// cancel releases what the token may have on a node that has replied.
func (c *quorumAttempt) cancel(i int) {
	c.mu.Lock()
	v := c.replies[i]
	c.mu.Unlock()
	if v.err == nil && v.reply.Granted || v.err != nil && tookPlace(v.err) {
		c.quorum.nodes[i].Cancel(ReleaseRequest{Record: c.req.Record, Token: c.req.Token}, c.req.Lease, nil)
	}
}

// retain stores an attempt to which some nodes have not replied yet.
func (q *quorum) retain(c *quorumAttempt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.late[c.req.Token] = c
}

// forget removes and returns the attempt of a token, if it was retained.
func (q *quorum) forget(token string) *quorumAttempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.late[token]
	delete(q.late, token)
	return c
}
