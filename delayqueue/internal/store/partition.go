package store

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/groupcommit"
)

// Settings are what the partitions of a queue have in common.
type Settings struct {
	Client       redis.UniversalClient
	Prefix, Name string // of the queue
	// For how long what ended is remembered, and a dead letter stored.
	Retention, DeadRetention time.Duration
	// How many messages may be open, and how much memory they may take.
	MaxDepth, MaxDepthPerKey                       int
	MaxBytes, MaxBytesPerKey, MaxBytesPerPrincipal int64

	// Begin is asked before a message is stored where there was none: Redis may have lost the queue.
	Begin func(ctx context.Context) error
	// Idle is told with each batch that was stored for how long nobody has claimed, less than 0 if there was nothing to claim, and
	// whether a call was parked.
	Idle func(p *Partition, since time.Duration, parked bool)
	// Forgotten is told how many dead letters were forgotten for lack of room, and the name of the last.
	Forgotten func(n int, name string)
	// SetBack is told that the clock of Redis was set back, and by how much the partition's is ahead now.
	SetBack func(ahead time.Duration)
}

// Store makes and asks the partitions of a queue.
type Store struct {
	Settings
	spans     []any // the first arguments of all scripts
	admission any   // the bounds of what is stored
}

// New returns the Store of a queue.
func New(s Settings) *Store {
	return &Store{
		Settings:  s,
		spans:     []any{fmt.Sprint(s.Retention.Milliseconds(), " ", s.MaxBytes), s.DeadRetention.Milliseconds()},
		admission: fmt.Sprint(s.MaxDepth, " ", s.MaxDepthPerKey, " ", s.MaxBytesPerKey, " ", s.MaxBytesPerPrincipal),
	}
}

// Partition is a part of a queue: all its keys share one hash tag, so they are in one slot of a
// Cluster. Messages of one key are in one partition. It is safe for concurrent use.
type Partition struct {
	Base  string // what the names of its keys begin with
	store *Store
	// Keys are all its keys except those of long payloads; its scripts declare them. Some do not exist, so a Redis
	// Cluster refuses its scripts while the slot moves to another node (TRYAGAIN).
	Keys     []string
	declared []any // the same, as arguments

	clock    atomic.Pointer[clock]
	bytes    atomic.Int64 // that its messages took at the last enqueue
	back     atomic.Int64 // by how much its clock is ahead of that of Redis, in ms, as far as was told
	claims   atomic.Int64 // the most that a Worker has at once
	enqueues *groupcommit.Group[*enqueueing]
	settles  *groupcommit.Group[*Settlement]
	// Those of earlier jobs. The pool is not global: it would carry channels between synctest's bubbles.
	enqueueings sync.Pool
}

func (s *Store) newPartition(tag string) *Partition {
	// Redis Cluster hashes what is between the first braces: ours, since neither
	// prefix nor name can hold any.
	base := fmt.Sprintf("%s:queue:{%s}", s.Prefix, tag)
	p := &Partition{store: s, Base: base, enqueueings: sync.Pool{New: emptyEnqueueing}}
	for _, name := range KeyNames {
		p.Keys = append(p.Keys, base+":"+name)
		p.declared = append(p.declared, base+":"+name)
	}
	p.enqueues = groupcommit.New(groupcommit.Options[*enqueueing]{
		Run: p.enqueue, Gone: func(e *enqueueing) bool { return e.ctx.Err() != nil }, Width: batchWidth, Max: batchMax,
		Fits: func(queue []*enqueueing) int {
			return distinct(queue[:fits(func(e *enqueueing) int { return len(e.job.Payload) })(queue)])
		},
	})
	p.settles = groupcommit.New(groupcommit.Options[*Settlement]{
		Run: p.SettleTogether, Width: settleWidth, Max: batchMax, Enough: func(n int) bool { return 2*n >= p.settleMost() },
		Fits: func(queue []*Settlement) int { return fitSettles(queue[:min(len(queue), p.settleMost())]) },
	})
	return p
}

// KeyNames are the names of a partition's keys, as common.lua has them and in its order.
var KeyNames = [...]string{
	"m", "z", "w", "r", "f", "c", "x", "y", "e", "k",
	"s0", "s1", "s2", "s3", "n0", "n1", "n2", "n3", "d0", "d1", "d2", "d3", "u", "h", "g", "l",
}

// Where keys stand in KeyNames.
const (
	KeyMessages = iota
	KeyWaiting
	KeyRunning
	KeyAttempts
	KeyFIFOs
	KeyCounts
	KeyDead
	KeyDeadLetters
	KeyEmptied
	KeyReceipts
	KeyResults // and the next Buckets-1
	Buckets    = 4
	KeyEnded   = KeyResults + Buckets // of ids that the queue made, and then of those of callers
	KeyUses    = KeyEnded + 2*Buckets
	KeyHalts   = KeyUses + 1
	KeyLoads   = KeyHalts + 1 // of dead letters
	KeyLetters = KeyLoads + 1
)

const (
	batchWidth  = 1 // script calls of a kind under way: what comes meanwhile is settled or stored together, by fewer calls
	settleWidth = 2 // Redis settles one batch while the worker has the replies of another
	batchMax    = 8
	// BatchItems is how many messages a script call takes.
	BatchItems = 64
	batchBytes = 1 << 20
)

// Expect says how many claims a Worker has at once, at most.
func (p *Partition) Expect(claims int) { p.claims.Store(max(p.claims.Load(), int64(claims))) }

// settleMost is how many claims are settled together: half of those that a Worker has, so that it runs one half while Redis
// settles the other. It is no more than one script call takes.
func (p *Partition) settleMost() int { return min(BatchItems, max(8, int(p.claims.Load())/2)) }

// fits bounds what goes into one script call.
func fits[T any](size func(T) int) func(queue []T) int {
	return func(queue []T) (n int) {
		for bytes := 0; n < len(queue) && n < BatchItems; n++ {
			if bytes += size(queue[n]); n > 0 && bytes > batchBytes {
				break
			}
		}
		return n
	}
}

// Partitions makes so many partitions. Their names have the number too, so that a process that knows a manifest which
// Redis has lost does not mix up messages.
func (s *Store) Partitions(n int) (parts []*Partition) {
	if n == 1 {
		return []*Partition{s.newPartition(s.Name)}
	}
	for i := range n {
		parts = append(parts, s.newPartition(fmt.Sprintf("%s/%d.%d", s.Name, i+1, n)))
	}
	return parts
}

// Of is the partition of a key, or without a key that of an id.
func Of(parts []*Partition, key, id string) *Partition {
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
