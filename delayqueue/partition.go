package delayqueue

import (
	"fmt"
	"hash/fnv"

	"github.com/perkey-go/perkey/internal/groupcommit"
)

// partition is a part of a Queue: all its keys share one hash tag, so they are in
// one slot of a Cluster. Messages of one key are in one partition.
type partition struct {
	queue *Queue
	base  string // what the names of its keys begin with
	// keys are what its scripts declare: two names that no key has. So a Redis Cluster
	// refuses them for as long as the slot moves to another node (TRYAGAIN): a script
	// would see a part of the queue, and begin another one with what it writes. With one
	// name, or one that exists, it would be run.
	keys     []string
	enqueues *groupcommit.Group[*enqueueing]
	settles  *groupcommit.Group[*settling]
}

func (q *Queue) newPartition(tag string) *partition {
	// Redis Cluster hashes what is between the first braces: ours, since neither
	// prefix nor name can hold any.
	base := fmt.Sprintf("%s:queue:{%s}", q.prefix, tag)
	p := &partition{queue: q, base: base, keys: []string{base, base + ":none"}}
	p.enqueues = groupcommit.New(groupcommit.Options[*enqueueing]{
		Run: p.enqueue, Gone: func(e *enqueueing) bool { return e.ctx.Err() != nil }, Width: batchWidth, Max: batchMax,
		Fits: fits(func(e *enqueueing) int { return len(e.job.Payload) }),
	})
	p.settles = groupcommit.New(groupcommit.Options[*settling]{
		Run: p.settle, Width: batchWidth, Max: batchMax,
		Fits: fits(func(s *settling) int { return len(s.verdict.result) }),
	})
	return p
}

const (
	batchWidth = 2 // script calls under way, so that Redis does not wait for us
	batchMax   = 8
	batchItems = 64 // in a script call
	batchBytes = 1 << 20
)

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

// makePartitions names them with how many there are: what was stored under another
// number is not mixed up with it.
func (q *Queue) makePartitions() {
	if q.split == 1 {
		q.partitions = []*partition{q.newPartition(q.name)}
		return
	}
	for i := range q.split {
		q.partitions = append(q.partitions, q.newPartition(fmt.Sprintf("%s/%d.%d", q.name, i+1, q.split)))
	}
}

// partitionOf is where the messages of a key are, or without one that of an id.
func (q *Queue) partitionOf(key, id string) *partition {
	if len(q.partitions) == 1 {
		return q.partitions[0]
	}
	if key == "" {
		key = id
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return q.partitions[h.Sum32()%uint32(len(q.partitions))]
}

func (p *partition) recordName(id string) string { return p.base + ":message:" + id }
