package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/listener"
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
// last one, and its nodes' clocks are behind. A store that refuses smaller fences is
// safe from what a quorum cannot prevent. With such a store, one deployment does as
// well: see docs/quorum.md.
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
	l.quorum = &quorum{locker: l, majority: len(clients)/2 + 1, patient: maxPatience, late: map[string]*candidacy{}}
	for _, rdb := range clients {
		own, err := newLocker(opts)
		if err != nil {
			return nil, err
		}
		own.id = l.id
		own.connect(rdb)
		l.quorum.nodes = append(l.quorum.nodes, &node{locker: own})
		up := func() {
			own.heardAgain()
			l.waiters.askAgain()
			l.notices.freedAll()
		}
		l.wakeups = append(l.wakeups, listener.New(rdb, channelPrefix(l.prefix)+l.id, up, own.unheard, l.heard))
	}
	return l, nil
}

const minNodes = 3

// quorum asks several nodes at a time, and goes by what a majority answers. It is what
// a Locker of many nodes has in place of a client.
type quorum struct {
	locker   *Locker
	nodes    []*node
	majority int
	patient  time.Duration // the longest that a node is waited for

	mu   sync.Mutex
	late map[string]*candidacy // granted, while some nodes have not answered: by entry
}

// node is one Redis of a quorum, with a Locker that is used for its commands alone.
type node struct {
	locker *Locker

	mu    sync.Mutex
	out   int       // questions without an answer
	heard time.Time // when the last answer came, or the first of these was sent
}

// maxPatience bounds how long a node is waited for when it decides something.
const maxPatience = 500 * time.Millisecond

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

// patience is how long the nodes have to answer a question about a lease of ttl.
func (q *quorum) patience(ttl time.Duration) time.Duration {
	if q.patient > maxPatience {
		return q.patient
	}
	return max(min(ttl/6, maxPatience), 2*renewalHorizon)
}

func (q *quorum) sameAs(other *quorum) bool {
	if q == nil || other == nil {
		return q == other
	}
	return slices.EqualFunc(q.nodes, other.nodes, func(a, b *node) bool { return a.locker.rdb == b.locker.rdb })
}

// clients are those of all deployments that hold the Locker's keys.
func (l *Locker) clients() []redis.UniversalClient {
	if l.quorum == nil {
		return []redis.UniversalClient{l.rdb}
	}
	var all []redis.UniversalClient
	for _, n := range l.quorum.nodes {
		all = append(all, n.locker.rdb)
	}
	return all
}

// oneDeployment refuses what is asked of a single deployment.
func (l *Locker) oneDeployment(op string) error {
	if l.quorum == nil {
		return nil
	}
	return fmt.Errorf("core: %s: a quorum has no one answer, ask a Locker on each of its nodes: %w", op, errors.ErrUnsupported)
}

func (q *quorum) close() {
	q.mu.Lock()
	late := q.late
	q.late = map[string]*candidacy{}
	q.mu.Unlock()
	for _, c := range late {
		c.hurry()
	}
	for _, n := range q.nodes {
		n.locker.closeAll()
	}
}

func (q *quorum) wait() {
	for _, n := range q.nodes {
		n.locker.wait()
	}
}

// silent reports whether the node has had enough questions without answering one.
func (n *node) silent() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out >= laneMax && time.Since(n.heard) > maxPatience
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

// submit has cmd sent, and tell called with what comes of it.
func (n *node) submit(cmd *command, tell func(result)) {
	if cmd.tell = tell; n.silent() {
		n.locker.deliver(cmd, result{err: errSilent})
		return
	}
	n.asked()
	cmd.tell = func(r result) {
		n.answered(r.err)
		tell(r)
	}
	if !n.locker.lane(cmd.record).submit(cmd) {
		n.locker.deliver(cmd, result{err: ErrClosed})
	}
}

// tookPlace reports whether a command may have had its effect on a node.
func tookPlace(err error) bool {
	return err == nil || !errors.Is(err, errSilent) && !errors.Is(err, ErrClosed) && mayHaveRun(err)
}

// giveBack has a node forget an entry, in the background.
func (n *node) giveBack(record, entry string) {
	again := func() {
		n.locker.cancel(n.locker.cancels, releaseRequest{record: record, entry: entry}, firstLease)
	}
	cmd := n.locker.command(context.Background(), releaseScript, true, record, entry, 0, 0, "", notQueued, "", false)
	n.submit(cmd, func(r result) {
		if r.err != nil {
			n.locker.later(again)
		}
	})
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
