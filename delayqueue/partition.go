package delayqueue

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/perkey-go/perkey/internal/groupcommit"
)

// partition is a part of a Queue: all its keys share one hash tag, so they are in one slot of a
// Cluster. Messages of one key are in one partition.
type partition struct {
	queue *Queue
	base  string // what the names of its keys begin with
	// keys are all its keys except those of long payloads; its scripts declare them. Some do not exist, so a Redis
	// Cluster refuses its scripts while the slot moves to another node (TRYAGAIN).
	keys     []string
	declared []any       // the same, as arguments
	known    atomic.Bool // that nothing of another layout is there

	clock    atomic.Pointer[clock]
	bytes    atomic.Int64 // that its messages took at the last enqueue
	back     atomic.Int64 // by how much its clock is ahead of that of Redis, in ms, as far as was warned of it
	enqueues *groupcommit.Group[*enqueueing]
	settles  *groupcommit.Group[*settling]
	// Those of earlier jobs. The pool is not global: it would carry channels between synctest's bubbles.
	enqueueings sync.Pool
	workers     atomic.Int64 // the greatest concurrency of a Worker that is served
}

func (q *Queue) newPartition(tag string) *partition {
	// Redis Cluster hashes what is between the first braces: ours, since neither
	// prefix nor name can hold any.
	base := fmt.Sprintf("%s:queue:{%s}", q.prefix, tag)
	p := &partition{queue: q, base: base, enqueueings: sync.Pool{New: emptyEnqueueing}}
	for _, name := range keyNames {
		p.keys = append(p.keys, base+":"+name)
		p.declared = append(p.declared, base+":"+name)
	}
	p.enqueues = groupcommit.New(groupcommit.Options[*enqueueing]{
		Run: p.enqueue, Gone: func(e *enqueueing) bool { return e.ctx.Err() != nil }, Width: batchWidth, Max: batchMax,
		Fits: func(queue []*enqueueing) int {
			return distinct(queue[:fits(func(e *enqueueing) int { return len(e.job.Payload) })(queue)])
		},
	})
	p.settles = groupcommit.New(groupcommit.Options[*settling]{
		Run: p.settle, Width: settleWidth, Max: batchMax, Enough: func(n int) bool { return 2*n >= p.settleMost() },
		Fits: func(queue []*settling) int { return fitSettles(queue[:min(len(queue), p.settleMost())]) },
	})
	return p
}

// keyNames are the names of a partition's keys, as common.lua has them and in its order.
var keyNames = [...]string{
	"m", "z", "w", "r", "f", "c", "x", "y", "e", "k",
	"s0", "s1", "s2", "s3", "n0", "n1", "n2", "n3", "d0", "d1", "d2", "d3", "u", "h", "g", "l",
}

// Where keys stand in keyNames.
const (
	keyMessages = iota
	keyWaiting
	keyRunning
	keyAttempts
	keyFIFOs
	keyCounts
	keyDead
	keyDeadLetters
	keyEmptied
	keyReceipts
	keyResults // and the next buckets-1
	buckets    = 4
	keyEnded   = keyResults + buckets // of ids that the queue made, and then of those of callers
	keyUses    = keyEnded + 2*buckets
	keyHalts   = keyUses + 1
	keyLoads   = keyHalts + 1 // of dead letters
	keyLetters = keyLoads + 1
)

const (
	batchWidth  = 1 // script calls of a kind under way: what comes meanwhile is settled or stored together, by fewer calls
	settleWidth = 2 // Redis settles one batch while the worker has the replies of another
	batchMax    = 8
	batchItems  = 64 // in a script call
	batchBytes  = 1 << 20
)

// settleMost is how many claims are settled together: half of those of a Worker that claims ahead,
// so that it runs one half while Redis settles the other. It is no more than one script call takes.
func (p *partition) settleMost() int {
	return min(batchItems, max(8, (1+aheadMost)*int(p.workers.Load())/2))
}

var fitSettles = fits(func(s *settling) int { return len(s.outcome.result) })

// fits bounds what goes into one script call.
func fits[T any](size func(T) int) func(queue []T) int {
	return func(queue []T) (n int) {
		for bytes := 0; n < len(queue) && n < batchItems; n++ {
			if bytes += size(queue[n]); n > 0 && bytes > batchBytes {
				break
			}
		}
		return n
	}
}

// distinct is how many of the first items of a queue have different ids.
func distinct(queue []*enqueueing) int {
	for i, e := range queue {
		if !e.job.fresh && slices.ContainsFunc(queue[:i], func(before *enqueueing) bool { return before.job.ID == e.job.ID }) {
			return i
		}
	}
	return len(queue)
}

// makePartitions makes so many partitions. Their names have the number too, so that a process that knows a manifest which
// Redis has lost does not mix up messages.
func (q *Queue) makePartitions(n int) (parts []*partition) {
	if n == 1 {
		return []*partition{q.newPartition(q.name)}
	}
	for i := range n {
		parts = append(parts, q.newPartition(fmt.Sprintf("%s/%d.%d", q.name, i+1, n)))
	}
	return parts
}

// partitionOf is the partition of a key, or without a key that of an id.
func partitionOf(parts []*partition, key, id string) *partition {
	if len(parts) == 1 {
		return parts[0]
	}
	if key == "" {
		key = id
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return parts[h.Sum32()%uint32(len(parts))]
}
