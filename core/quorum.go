package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/schedule"
)

// NewQuorum makes a Locker on several independent Redis deployments, its nodes, of
// which a majority has to grant a key (Redlock: Sanfilippo, 2015). It goes on while
// a majority answers. Its error wraps ErrInvalidOption; the clients stay the caller's
// to close, after the Locker.
//
// There must be at least 3 nodes, each one a primary of its own: replicas of one
// another, or two clients of one server, make it unsafe. An odd number is best: one
// more than that bears no more failures.
//
// Everything works as on one deployment, but for this:
//
//   - Waiting calls of one process are served in order. Between processes there is no
//     order: each asks again, after a random delay of 10 to 250 ms.
//   - When several processes ask at the same time, each can get less than a majority:
//     all of them are refused, or ask again.
//   - A node that has not answered within a sixth of the first lease, at most half a
//     second, is counted as one that does not answer.
//   - Inspect, List, ForceRelease and Lease.Downgrade return an error that wraps
//     errors.ErrUnsupported. A Locker on each node can tell what that node has.
//   - WithRenewalClient cannot be used, since each node has a renewal client of its own;
//     nor can WaitReplicas.
//
// # What holds
//
// At most one unexpired lease per key, as long as fewer than half of the nodes forget
// what they granted while it lasts, and as long as no more than a hundredth lies
// between the speeds of the nodes' clocks and of the holder's: the clocks may be
// apart, but must not jump forward during a lease. A node that starts again without
// its data has forgotten: keep it away for one TTL, or have it write each command to
// its disk (appendfsync always). What a holder does after its lease was lost, which
// it cannot know while its process is stopped, overlaps with the next holder's.
//
// The fence holds beyond that: it grows with every grant, whatever the nodes' clocks
// say, unless so many nodes lost their data that a grant meets none which knows of the
// last one, and its nodes' clocks are behind. A store in which holders claim their fence
// before they read is safe from what a quorum cannot prevent; see [Lease.Fence]. With such a
// store, one deployment does as well: see docs/quorum.md.
func NewQuorum(clients []redis.UniversalClient, opts ...Option) (*Locker, error) {
	if len(clients) < minNodes {
		return nil, fmt.Errorf("core: %w: a quorum of %d nodes: want at least %d", ErrInvalidOption, len(clients), minNodes)
	}
	for i, rdb := range clients {
		if err := checkClient(rdb); err != nil {
			return nil, fmt.Errorf("node %d of the quorum: %w", i, err)
		}
		if at := slices.Index(clients, rdb); at != i {
			return nil, fmt.Errorf("core: %w: nodes %d and %d of the quorum are one client", ErrInvalidOption, at, i)
		}
	}
	l, err := newLocker(opts)
	if err != nil {
		return nil, err
	}
	if l.renewer != nil {
		return nil, fmt.Errorf("core: %w: WithRenewalClient: a quorum has one for each node", ErrInvalidOption)
	}
	l.fences = fenceBlock / 2
	q := &quorum{
		lifecycle: l.lifecycle, prefix: l.prefix, ttl: l.ttl, fences: l.fences,
		majority: len(clients)/2 + 1, timeout: maxNodeTimeout, late: map[string]*quorumAttempt{},
	}
	for _, rdb := range clients {
		q.nodes = append(q.nodes, &node{deployment: newDeployment(rdb, nil, l.id, l.prefix, l.lifecycle, (*storeEvents)(l))})
	}
	l.store = q
	l.waiters = newWaiters(l)
	return l, nil
}

const minNodes = 3

// quorum is the store of several nodes: it asks them at a time, and a majority decides.
type quorum struct {
	*lifecycle
	prefix   string
	ttl      time.Duration
	fences   int64 // how many an exclusive hold may use
	nodes    []*node
	majority int
	timeout  time.Duration // the longest that a node is waited for

	mu   sync.Mutex
	late map[string]*quorumAttempt // granted, while some nodes have not answered: by entry
}

// node is one Redis of a quorum.
type node struct {
	*deployment

	mu    sync.Mutex
	out   int       // questions without an answer
	heard time.Time // when the last answer came, or the first of these was sent
}

// maxNodeTimeout bounds how long a node is waited for when it decides something.
const maxNodeTimeout = 500 * time.Millisecond

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
func (q *quorum) timeoutFor(ttl time.Duration) time.Duration {
	if q.timeout > maxNodeTimeout {
		return q.timeout
	}
	return max(min(ttl/6, maxNodeTimeout), 2*schedule.Horizon)
}

func (q *quorum) sameAs(other store) bool {
	o, ok := other.(*quorum)
	return ok && slices.EqualFunc(q.nodes, o.nodes, func(a, b *node) bool { return a.rdb == b.rdb })
}

// deployment returns the Locker's only one, of which op is asked.
func (l *Locker) deployment(op string) (*deployment, error) {
	if d, ok := l.store.(*deployment); ok {
		return d, nil
	}
	return nil, fmt.Errorf("core: %s: a quorum has no one answer, ask a Locker on each of its nodes: %w", op, errors.ErrUnsupported)
}

func (q *quorum) queues() bool                                      { return false }
func (q *quorum) mark() any                                         { return notQueued }
func (q *quorum) nodeOf(string) any                                 { return nil }
func (q *quorum) refresh(context.Context, []refresh) []refreshReply { return nil } // nothing is queued
func (q *quorum) replicates() error                                 { return errNoReplicas }
func (q *quorum) confirm(context.Context, []*hold, *acquireOptions) ([]bool, int, error) {
	return nil, 0, errNoReplicas
}

var errNoReplicas = fmt.Errorf("core: %w: WaitReplicas: a quorum does not wait for replicas", ErrInvalidOption)

func (q *quorum) listening() bool {
	return !slices.ContainsFunc(q.nodes, func(n *node) bool { return !n.listening() })
}

func (q *quorum) cancel(req releaseRequest, ttl time.Duration, done func()) (ok bool) {
	if c := q.forget(req.entry); c != nil {
		c.leave()
	}
	for _, n := range q.nodes {
		ok = n.cancel(req, ttl, done)
	}
	return ok
}

func (q *quorum) admit(string, string, []follower, func([]int64, error)) bool { return false }

func (q *quorum) publish(ctx context.Context, locker, text string) {
	for _, n := range q.nodes {
		n.publish(ctx, locker, text)
	}
}

func (q *quorum) evictions(ctx context.Context) (warnings []Warning) {
	for _, n := range q.nodes {
		warnings = append(warnings, n.evictions(ctx)...)
	}
	return warnings
}

func (q *quorum) start() {
	for _, n := range q.nodes {
		n.start()
	}
}

func (q *quorum) close() {
	q.mu.Lock()
	late := q.late
	q.late = map[string]*quorumAttempt{}
	q.mu.Unlock()
	for _, c := range late {
		c.hurry()
	}
	for _, n := range q.nodes {
		n.close()
	}
}

func (q *quorum) wait() {
	for _, n := range q.nodes {
		n.wait()
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
		n.deliver(cmd, result{err: ErrClosed})
	}
}

// tookPlace reports whether a command may have had its effect on a node.
func tookPlace(err error) bool {
	return err == nil || !errors.Is(err, errSilent) && !errors.Is(err, ErrClosed) && mayHaveRun(err)
}

// tally counts what the nodes answer to one question.
type tally struct{ nodes, majority, yes, no, failed int }

type answer int

const (
	answerYes answer = iota
	answerNo
	answerFailed
)

func (t *tally) count(a answer) {
	switch a {
	case answerYes:
		t.yes++
	case answerNo:
		t.no++
	default:
		t.failed++
	}
}

func (t *tally) pending() int { return t.nodes - t.yes - t.no - t.failed }

// expire counts those that have not answered as failed.
func (t *tally) expire() { t.failed += t.pending() }

func (t *tally) accepted() bool { return t.yes >= t.majority }

// denied: whoever asks for a majority now meets a node that said no.
func (t *tally) denied() bool { return t.no > t.nodes-t.majority }

// unknown: too few nodes answer.
func (t *tally) unknown() bool { return t.failed > t.nodes-t.majority }

func (t *tally) settled() bool {
	return t.accepted() || t.denied() || t.unknown() || t.pending() == 0
}
