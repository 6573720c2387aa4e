package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
)

// Quorum is the store of several nodes: it asks them at a time, and a majority decides.
type Quorum struct {
	life     *lifecycle.Lifecycle
	prefix   string
	ttl      time.Duration
	nodes    []*node
	majority int
	// NodeTimeout is how long nodes are waited for; zero: a sixth of a lease, half a second at most.
	NodeTimeout time.Duration

	mu   sync.Mutex
	late map[string]*quorumAttempt // granted, while some nodes have not answered: by token
}

// node is one Redis of a Quorum.
type node struct {
	*Deployment

	mu    sync.Mutex
	out   int       // questions without an answer
	heard time.Time // when the last answer came, or the first of these was sent
}

// How long a node is waited for when it decides something.
const minNodeTimeout, maxNodeTimeout = 20 * time.Millisecond, 500 * time.Millisecond

// NewQuorum makes the store on clients. Each has a client of its own for renewals, so that c has none.
func NewQuorum(clients []redis.UniversalClient, c Config) *Quorum {
	q := &Quorum{life: c.Life, prefix: c.Prefix, ttl: c.TTL, majority: len(clients)/2 + 1, late: map[string]*quorumAttempt{}}
	for _, rdb := range clients {
		q.nodes = append(q.nodes, &node{Deployment: NewDeployment(rdb, c)})
	}
	return q
}

var (
	errSilent     = errors.New("the node does not answer, and has enough to do when it does")
	errNoMajority = errors.New("a majority of the nodes does not answer")
)

// noMajority says so, with what one of the nodes said.
func noMajority(err error) error {
	if err == nil {
		return errNoMajority
	}
	return fmt.Errorf("%w: %w", errNoMajority, err)
}

// timeoutFor is how long the nodes have to answer a question about a lease of ttl.
func (q *Quorum) timeoutFor(ttl time.Duration) time.Duration {
	if q.NodeTimeout > 0 {
		return q.NodeTimeout
	}
	return max(min(ttl/6, maxNodeTimeout), minNodeTimeout)
}

// SameAs implements Store.
func (q *Quorum) SameAs(other Store) bool {
	o, ok := other.(*Quorum)
	return ok && slices.EqualFunc(q.nodes, o.nodes, func(a, b *node) bool { return a.rdb == b.rdb })
}

// Queues implements Store.
func (q *Quorum) Queues() bool { return false }

// Single implements Store.
func (q *Quorum) Single() bool { return false }

// Fences implements Store. It is half a block: a node whose own fence is up to half a block below the
// agreed one has reserved all that follow that; see agree.
func (q *Quorum) Fences() int { return int(FenceBlock / 2) }

// Mark implements Store.
func (q *Quorum) Mark() Mark { return NotQueued }

// NodeOf implements Store.
func (q *Quorum) NodeOf(string) any { return nil }

// Listening implements Store.
func (q *Quorum) Listening() bool {
	return !slices.ContainsFunc(q.nodes, func(n *node) bool { return !n.Listening() })
}

// Replicates implements Store.
func (q *Quorum) Replicates() error { return errors.New("a quorum does not wait for replicas") }

// Cancel implements Store.
func (q *Quorum) Cancel(req ReleaseRequest, ttl time.Duration, done func()) (ok bool) {
	if c := q.forget(req.Token); c != nil {
		c.leave()
	}
	for _, n := range q.nodes {
		ok = n.Cancel(req, ttl, done)
	}
	return ok
}

// TellReleased implements Store.
func (q *Quorum) TellReleased(ctx context.Context, locker, key string, fence int64) {
	for _, n := range q.nodes {
		n.TellReleased(ctx, locker, key, fence)
	}
}

// Evictions implements Store.
func (q *Quorum) Evictions(ctx context.Context) (warnings []Warning) {
	for _, n := range q.nodes {
		warnings = append(warnings, n.Evictions(ctx)...)
	}
	return warnings
}

// Start implements Store.
func (q *Quorum) Start() {
	for _, n := range q.nodes {
		n.Start()
	}
}

// Close implements Store.
func (q *Quorum) Close() {
	q.mu.Lock()
	late := q.late
	q.late = map[string]*quorumAttempt{}
	q.mu.Unlock()
	for _, c := range late {
		c.hurry()
	}
	for _, n := range q.nodes {
		n.Close()
	}
}

// Wait implements Store.
func (q *Quorum) Wait() {
	for _, n := range q.nodes {
		n.Wait()
	}
}

// silent reports whether the node has had enough questions without answering one.
func (n *node) silent() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out >= batcherMax && time.Since(n.heard) > maxNodeTimeout
}

func (n *node) asked() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.out == 0 {
		n.heard = time.Now()
	}
	n.out++
}

func (n *node) answered(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.out--
	if err == nil {
		n.heard = time.Now()
	}
}

// submit sends cmd, and calls onReply with its result.
func (n *node) submit(cmd *command, onReply func(result)) {
	if cmd.onReply = onReply; n.silent() {
		n.deliver(cmd, result{err: errSilent})
		return
	}
	n.asked()
	cmd.onReply = func(r result) {
		n.answered(r.err)
		onReply(r)
	}
	if !n.batcher(cmd.record).submit(cmd) {
		n.deliver(cmd, result{err: lifecycle.ErrClosed})
	}
}

// tookPlace reports whether a command may have had its effect on a node.
func tookPlace(err error) bool {
	return err == nil || !errors.Is(err, errSilent) && !errors.Is(err, lifecycle.ErrClosed) && MayHaveRun(err)
}
