package core

// A Locker on several independent deployments: [NewQuorum].

import (
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/store"
)

// NewQuorum makes a Locker on several independent Redis deployments, its nodes, of which a majority
// has to grant a key (Redlock: Sanfilippo, 2015). It goes on while a majority answers. Its error
// wraps [ErrInvalidOption]; the clients stay the caller's to close, after the Locker.
//
// There must be at least 3 nodes, each one a primary of its own: replicas of one another, or two
// clients of one server, make it unsafe. Choose an odd number: one more node than that tolerates no
// more failures.
//
// It works like a Locker on one deployment, except that:
//
//   - Waiting calls of one process are served in order. Between processes there is no
//     order: each asks again, after a random delay of 10 to 250 ms.
//   - When several processes ask at the same time, each can get less than a majority:
//     then all of them are refused, or ask again.
//   - A node that has not answered within a sixth of the first lease, at most half a
//     second, counts as one that does not answer.
//   - A [Counted] key needs more than a majority, since each node counts for itself: ⌊N·n/(n+1)⌋+1 of N nodes for n
//     holders, so 4 of 5 nodes for 2 or 3 holders, and all of 3 nodes for 2 or more.
//   - [Locker.Inspect], [Locker.List], [Locker.ForceRelease] and [Lease.Downgrade] return an error that wraps
//     [errors.ErrUnsupported]. A Locker on one of the nodes can report on that node.
//   - [WithRenewalClient] cannot be used, since each node has its own renewal client;
//     nor can [WaitReplicas].
//
// # What holds
//
// At most one unexpired lease per key, as long as two things hold. Fewer than half of the nodes
// forget what they granted while it lasts. And the speeds of the nodes' clocks and of the holder's
// differ by no more than a hundredth: the clocks may be apart, but must not jump forward during a
// lease. A node that restarts without its data has forgotten: keep it away for one TTL, or have it
// write each command to its disk (appendfsync always). What a holder does after its lease was lost
// overlaps with the next holder's work; while its process is stopped it cannot know of the loss.
//
// The fence holds beyond that: it grows with every grant, whatever the nodes' clocks say. It can
// fail to grow only if the clocks of those which make a grant are behind the last one, and none of them knows it: they
// lost their data, or the clocks were set back while the key was free. A store in which holders claim their fence before they
// read is safe from what a quorum cannot prevent; see [Lease.Fence]. With such a store, one
// deployment does as well: see docs/quorum.md.
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
	l.use(store.NewQuorum(clients, l.storeConfig()))
	return l, nil
}

const minNodes = 3
