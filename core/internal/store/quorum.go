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

// quorum is the store of several independent deployments, its nodes: ask all → count votes → a
// majority decides, and for counted holders more (see needed).
type quorum struct {
	life     *lifecycle.Lifecycle
	prefix   string
	ttl      time.Duration
	nodes    []*node
	majority int
	timeout  time.Duration // how long it waits for nodes; zero: see timeoutFor

	mu   sync.Mutex
	late map[string]*quorumAttempt // by token: granted, while some nodes have not replied
}

// node is one Redis of a quorum.
type node struct{ *deployment }

// The bounds of the time that a decision waits for a node.
const minNodeTimeout, maxNodeTimeout = 20 * time.Millisecond, 500 * time.Millisecond

// NewQuorum makes the store of several nodes. Each node has its own client for renewals, so c has none.
func NewQuorum(clients []redis.UniversalClient, c Config) Store {
	q := &quorum{life: c.Life, prefix: c.Prefix, ttl: c.TTL, timeout: c.NodeTimeout, majority: len(clients)/2 + 1, late: map[string]*quorumAttempt{}}
	for _, rdb := range clients {
		q.nodes = append(q.nodes, &node{newDeployment(rdb, c)})
	}
	return q
}

var (
	errSilent = errors.New("the node does not answer")
	errTooFew = errors.New("too few of the nodes answer")
)

// tooFew returns errTooFew, with the error of one of the nodes.
func tooFew(err error) error {
	if err == nil {
		return errTooFew
	}
	return fmt.Errorf("%w: %w", errTooFew, err)
}

// needed is how many nodes have to grant a token, so that no more hold the key than its limit n
// says: each node has n places, and n+1 holders with so many places each would need more places
// than there are. For one holder, and for readers beside a writer, that is a majority.
func (q *quorum) needed(token string) int {
	n := max(LimitOf(token), Exclusive)
	return len(q.nodes)*n/(n+1) + 1
}

// timeoutFor is how long the nodes have to reply to a request for a lease of ttl.
func (q *quorum) timeoutFor(ttl time.Duration) time.Duration {
	if q.timeout > 0 {
		return q.timeout
	}
	return max(min(ttl/6, maxNodeTimeout), minNodeTimeout)
}

func (q *quorum) SameAs(other Store) bool {
	o, ok := other.(*quorum)
	return ok && slices.EqualFunc(q.nodes, o.nodes, func(a, b *node) bool { return a.rdb == b.rdb })
}

func (q *quorum) Queues() bool      { return false }
func (q *quorum) Single() bool      { return false }
func (q *quorum) Mark() Mark        { return NotQueued }
func (q *quorum) NodeOf(string) any { return nil }
func (q *quorum) Listening() bool {
	return !slices.ContainsFunc(q.nodes, func(n *node) bool { return !n.Listening() })
}

// Fences is half a block: a node whose own fence is up to half a block below the agreed one has
// reserved all that follow that; see agree.
func (q *quorum) Fences() int { return int(FenceBlock / 2) }

func (q *quorum) Cancel(req ReleaseRequest, ttl time.Duration, done func(owned bool)) (ok bool) {
	if c := q.forget(req.Token); c != nil {
		c.leave()
	}
	for _, n := range q.nodes {
		ok = n.Cancel(req, ttl, done)
	}
	return ok
}

func (q *quorum) TellReleased(ctx context.Context, locker, key string, fence int64) {
	for _, n := range q.nodes {
		n.TellReleased(ctx, locker, key, fence)
	}
}

func (q *quorum) Evictions(ctx context.Context) (warnings []Warning) {
	for _, n := range q.nodes {
		warnings = append(warnings, n.Evictions(ctx)...)
	}
	return warnings
}

func (q *quorum) Start() {
	for _, n := range q.nodes {
		n.Start()
	}
}

func (q *quorum) Close() {
	q.mu.Lock()
	late := q.late
	q.late = map[string]*quorumAttempt{}
	q.mu.Unlock()
	for _, c := range late {
		c.stopRetries()
	}
	for _, n := range q.nodes {
		n.Close()
	}
}

func (q *quorum) Wait() {
	for _, n := range q.nodes {
		n.Wait()
	}
}

// silent reports whether the node does not even answer probes. It is asked again once it does.
func (n *node) silent(record string) bool {
	b := n.batcher(record)
	b.suspect()
	return b.isDown() || b.deaf()
}

// submit sends cmd, and calls onReply with its result.
func (n *node) submit(cmd *command, onReply func(result)) {
	cmd.onReply = onReply
	if !n.batcher(cmd.record).submit(cmd) {
		n.deliver(cmd, result{err: lifecycle.ErrClosed})
	}
}

// tookPlace reports whether a command may have had its effect on a node.
func tookPlace(err error) bool {
	return err == nil || !errors.Is(err, lifecycle.ErrClosed) && MayHaveRun(err)
}

// votes counts the replies of the nodes to one request.
type votes struct{ nodes, needed, yes, no, failed int }

type answer int

const (
	answerYes answer = iota
	answerNo
	answerFailed
)

func (v *votes) add(a answer) {
	switch a {
	case answerYes:
		v.yes++
	case answerNo:
		v.no++
	default:
		v.failed++
	}
}

func (v *votes) pending() int { return v.nodes - v.yes - v.no - v.failed }

// expire counts the nodes that have not replied as failed.
func (v *votes) expire() { v.failed += v.pending() }

func (v *votes) accepted() bool { return v.yes >= v.needed }

// denied: so many nodes said no that the others are too few.
func (v *votes) denied() bool { return v.no > v.nodes-v.needed }

// unknown: so many nodes failed that the others are too few.
func (v *votes) unknown() bool { return v.failed > v.nodes-v.needed }

func (v *votes) settled() bool {
	return v.accepted() || v.denied() || v.unknown() || v.pending() == 0
}

// What a quorum cannot do.

func (q *quorum) Replicates() error { return errors.New("a quorum does not wait for replicas") }
func (q *quorum) Downgrades() error { return unsupported("downgrade") }
func (q *quorum) Downgrade(context.Context, DowngradeRequest) (bool, error) {
	return false, unsupported("downgrade")
}

func (q *quorum) Inspect(context.Context, string) (Info, error) {
	return Info{}, unsupported("inspect")
}

func (q *quorum) List(context.Context, string, int) ([]Info, string, error) {
	return nil, "", unsupported("list")
}

func (q *quorum) Force(context.Context, string, int64) (int64, error) {
	return 0, unsupported("force release")
}

func (q *quorum) Reserve(context.Context, string, ReserveRequest) (ReserveReply, error) {
	return ReserveReply{}, unsupported("reserve")
}

func (q *quorum) Unreserve(context.Context, string, int64) (bool, error) {
	return false, unsupported("unreserve")
}
func (q *quorum) Refresh(context.Context, []Refresh) []RefreshReply             { return nil }
func (q *quorum) Admit(string, string, int64, []Follower, func([]int64, error)) {}

func (q *quorum) AcquireAll(context.Context, []string, AcquireRequest) (AcquireAllReply, error) {
	return AcquireAllReply{}, unsupported("acquire all")
}

func (q *quorum) Confirm(context.Context, func() []Renewal, int, time.Duration) ([]bool, int, error) {
	return nil, 0, unsupported("confirm")
}

func unsupported(op string) error {
	return fmt.Errorf("core: %s: a quorum has no one answer, ask a Locker on each of its nodes: %w", op, errors.ErrUnsupported)
}

// Heard returns nil if a majority of the nodes was heard.
func (q *quorum) Heard(ctx context.Context, record string) (err error) {
	replies := make(chan error, len(q.nodes))
	for _, n := range q.nodes {
		if !q.life.Background(func() { replies <- n.Heard(ctx, record) }) {
			return Closed("acquire", KeyOf(q.prefix, record))
		}
	}
	t := votes{nodes: len(q.nodes), needed: q.majority}
	for !t.accepted() && !t.unknown() {
		its := <-replies
		if its == nil {
			t.add(answerYes)
			continue
		}
		err = its
		t.add(answerFailed)
	}
	if t.accepted() {
		return nil
	}
	return err
}
