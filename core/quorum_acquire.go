package core

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// quorumAttempt is one entry's way to a majority. Once it has one, a node that answers late
// keeps the entry: to give it back there could take it from a node that counts by now,
// since a renewal found it. So an entry is only given back when it is to hold nothing
// any more.
type quorumAttempt struct {
	quorum  *quorum
	ask     question
	gone    chan struct{} // ends go-redis's own retries
	hurried sync.Once

	mu      sync.Mutex
	votes   []vote // by node
	tally   tally
	late    bool // the tally is closed
	over    bool // the entry is to hold nothing any more
	decided chan struct{}
}

type vote struct {
	in    bool // the node has answered
	reply acquireReply
	err   error
}

// acquire implements store.
func (q *quorum) acquire(ctx context.Context, ask question, stop <-chan struct{}) (reply acquireReply, stopped bool, err error) {
	c := &quorumAttempt{
		quorum: q, ask: ask, gone: make(chan struct{}), decided: make(chan struct{}),
		votes: make([]vote, len(q.nodes)), tally: tally{nodes: len(q.nodes), majority: q.majority},
	}
	for i, n := range q.nodes {
		cmd := n.command(ctx, acquireScript, false, ask.record, ask.entry, ask.lease.Milliseconds(), ask.what, ask.mark, ask.watch)
		cmd.ctx.gone = c.gone
		n.submit(cmd, func(r result) { c.count(i, r) })
	}
	if stopped, err = c.waitFor(ctx, c.decided, stop, c.expire); err == nil && !stopped {
		if reply, err = c.outcome(); err != nil {
			err = unavailable("acquire", ask.key, err)
		}
	}
	if reply.granted {
		reply.fence, stopped, err = c.agree(ctx, stop)
	}
	if reply.granted && err == nil && !stopped {
		err = ask.late(ctx)
	}
	if err != nil || stopped || !reply.granted {
		c.withdraw()
	}
	return reply, stopped, err
}

// waitFor waits until done is closed, which late must bring about. It returns early
// at stop, and when the caller cannot wait any longer.
func (c *quorumAttempt) waitFor(ctx context.Context, done, stop <-chan struct{}, late func()) (stopped bool, err error) {
	timer := time.NewTimer(min(c.quorum.timeoutFor(c.ask.lease), c.ask.timeout))
	defer timer.Stop()
	for {
		select {
		case <-done:
			return false, nil
		case <-stop:
			return true, nil
		case <-ctx.Done():
			return false, callerGone(ctx, "acquire", c.ask.key)
		case <-timer.C:
			late()
		case <-c.quorum.closing:
			return false, fmt.Errorf("core: acquire %q: %w", c.ask.key, ErrClosed)
		}
	}
}

// count takes the answer of one node.
func (c *quorumAttempt) count(i int, r result) {
	reply, err := parseAcquire(r)
	c.mu.Lock()
	c.votes[i] = vote{true, reply, err}
	over := c.over
	if !c.late {
		switch {
		case err != nil:
			c.tally.count(answerFailed)
		case reply.granted:
			c.tally.count(answerYes)
		default:
			c.tally.count(answerNo)
		}
		c.decide()
	}
	all := !slices.ContainsFunc(c.votes, func(v vote) bool { return !v.in })
	c.mu.Unlock()
	if over {
		c.giveBack(i)
	}
	if all {
		c.quorum.forget(c.ask.entry)
	}
}

// decide closes the tally as soon as a majority has granted; or cannot any more, and it
// is known whether that is for holders or for nodes that do not answer. Called with mu
// held.
func (c *quorumAttempt) decide() {
	t := &c.tally
	hopeless := t.yes+t.pending() < t.majority
	if t.accepted() || t.unknown() || hopeless && t.yes+t.no >= t.majority {
		c.late = true
		close(c.decided)
	}
}

func (c *quorumAttempt) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.late {
		c.tally.expire()
		c.decide()
	}
}

// outcome is what the tally says.
func (c *quorumAttempt) outcome() (reply acquireReply, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.tally.accepted():
		if slices.ContainsFunc(c.votes, func(v vote) bool { return !v.in }) {
			c.quorum.keep(c)
		}
		return acquireReply{granted: true}, nil
	case c.tally.unknown():
		for _, v := range c.votes {
			err = cmp.Or(err, v.err)
		}
		return reply, noMajority(err)
	}
	// The key can be had when so many of those who hold it are gone that the others
	// make a majority.
	var ends []time.Duration
	for _, v := range c.votes {
		if v.in && v.err == nil && !v.reply.granted {
			ends = append(ends, v.reply.remaining)
			reply.queued = max(reply.queued, v.reply.queued)
		}
	}
	slices.Sort(ends)
	if short := c.tally.majority - c.tally.yes; len(ends) > 0 {
		reply.remaining = ends[min(short, len(ends))-1]
	}
	return reply, nil
}

// agree finds the fence. Each node has granted its own, greater than every one that it
// knows of; the greatest of a majority is greater than every earlier grant's, since two
// majorities have a node in common. For the next majority to know of it in turn, it must
// be known to a majority before anybody uses it: those who granted it, or have reserved
// it with their block, know already. The others are told, which costs a round trip.
func (c *quorumAttempt) agree(ctx context.Context, stop <-chan struct{}) (fence int64, stopped bool, err error) {
	q := c.quorum
	fences := map[*node]int64{}
	c.mu.Lock()
	for i, v := range c.votes {
		if v.in && v.err == nil && v.reply.granted {
			fences[q.nodes[i]] = v.reply.fence
			fence = max(fence, v.reply.fence)
		}
	}
	c.mu.Unlock()
	for round := 0; ; round++ {
		know := 0
		for _, its := range fences {
			if its == fence || c.ask.limit == exclusive && its+fenceBlock >= fence+q.fences {
				know++
			}
		}
		if know >= q.majority {
			return fence, false, nil
		}
		if round > 0 {
			// Others raise theirs at the same time. Of unequal steps the longest wins.
			fence += rand.Int64N(1 << min(round, 16))
		}
		if fence, stopped, err = c.raise(ctx, stop, fences, fence); stopped || err != nil {
			return 0, stopped, err
		}
	}
}

// raise asks the nodes that granted to raise their fences to fence at least, and records
// what they are then. It returns fence if a majority has that one, else the greatest.
func (c *quorumAttempt) raise(ctx context.Context, stop <-chan struct{}, fences map[*node]int64, fence int64) (raised int64, stopped bool, err error) {
	q := c.quorum
	var mu sync.Mutex
	replies := map[*node]int64{}
	t := tally{nodes: len(fences), majority: q.majority}
	late, done := false, make(chan struct{})
	settle := func() {
		if !late && (t.accepted() || t.unknown() || t.pending() == 0) {
			late = true
			close(done)
		}
	}
	for n := range fences {
		cmd := n.command(ctx, raiseScript, false, c.ask.record, c.ask.entry, fence)
		n.submit(cmd, func(r result) {
			mu.Lock()
			defer mu.Unlock()
			its, ok := r.val.(int64)
			switch {
			case r.err != nil || !ok || its == 0: // its grant is over already
				t.count(answerFailed)
			case its == fence:
				t.count(answerYes)
				replies[n] = its
			default:
				t.count(answerNo)
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
		return 0, false, unavailable("acquire", c.ask.key, noMajority(nil))
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

// withdraw gives back what the entry has, or will have: everywhere but where it was
// refused.
func (c *quorumAttempt) withdraw() {
	c.mu.Lock()
	c.over = true
	var held []int
	for i, v := range c.votes {
		if v.in && (v.err != nil || v.reply.granted) {
			held = append(held, i)
		}
	}
	c.mu.Unlock()
	c.quorum.forget(c.ask.entry)
	c.hurry()
	for _, i := range held {
		c.giveBack(i)
	}
}

// leave ends the quorumAttempt of an entry that is released everywhere by others: nodes that
// have not answered yet may do so after the release.
func (c *quorumAttempt) leave() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.hurry()
}

// hurry ends go-redis's retries of questions that nobody needs an answer to.
func (c *quorumAttempt) hurry() { c.hurried.Do(func() { close(c.gone) }) }

// giveBack gives back what the entry may have on a node that has answered.
func (c *quorumAttempt) giveBack(i int) {
	c.mu.Lock()
	v := c.votes[i]
	c.mu.Unlock()
	if v.err == nil && v.reply.granted || v.err != nil && tookPlace(v.err) {
		c.quorum.nodes[i].cancel(releaseRequest{record: c.ask.record, entry: c.ask.entry}, c.ask.lease, nil)
	}
}

// keep remembers a quorumAttempt that nodes have not answered yet.
func (q *quorum) keep(c *quorumAttempt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.late[c.ask.entry] = c
}

// forget returns the quorumAttempt of an entry, if it was kept.
func (q *quorum) forget(entry string) *quorumAttempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.late[entry]
	delete(q.late, entry)
	return c
}
