package delayqueue

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

const (
	defaultDepth = 100_000
	// docs/scaling.md has how long a node of a Cluster stalls when a partition with so many messages moves.
	defaultClusterDepth = 3000
	// Enough never to be changed; and an idle Worker sends no more than 2 commands a second.
	defaultClusterPartitions = 16
	defaultBytes             = 64 << 20
	maxBytes                 = 1 << 40
	// What a message takes beside its payload, at most: its record, with the longest key, name
	// and principal, its entries in Redis, and what sealing adds.
	overhead = 6500
)

// depthOf is the default of [WithMaxDepth].
func depthOf(rdb redis.UniversalClient) int {
	if isCluster(rdb) {
		return defaultClusterDepth
	}
	return defaultDepth
}

// splitOf is the default of [WithPartitions] for a new queue.
func splitOf(rdb redis.UniversalClient) int {
	if isCluster(rdb) {
		return defaultClusterPartitions
	}
	return 1
}

func isCluster(rdb redis.UniversalClient) bool {
	_, is := rdb.(*redis.ClusterClient)
	return is
}

// WithMaxBytes bounds the memory of Redis, in bytes, of the queued and running messages of each
// partition. A job for which there is no room is refused with [ErrQueueFull]. Default 64 MiB, or
// four of the largest payloads ([WithMaxPayload]) if that is more. There must be room for one.
//
// What is over refuses nothing: beside it messages that have ended take half as much at most, and
// dead letters again as much, so that a partition takes twice this bound.
//
// A message counts as its payload and a quarter more, since Redis rounds up, and some 500 to 700
// bytes, with long keys, ids and principals once for each place in which they are stored, and with
// the cause of a failed attempt if there is room for it. One that has ended counts as some 150 to
// 200 bytes and its result. That is 0.9 to 3 times what servers use: most on Valkey, for short messages.
//
// Of what has ended, what has no room is forgotten before its [WithRetention] is over, the oldest
// first: results, then ids that the queue made, and last those that callers gave ([Job].ID); results
// and the queue's ids keep an eighth of the room each. No id is forgotten within a minute (or its retention): if callers'
// of one minute need more, they take it from queued messages; the queue's own, more than 2,500 a second by default, may exceed
// the bound. To store more raise it: 1,000 messages a second without results take 700 MB for an hour.
//
// Of dead letters the oldest is forgotten of the principal that has most, of those of the name that
// has most, so that nobody flushes the dead letters of others; [WarnForgotten] tells. Its status stays,
// as that of other messages that have ended.
//
// A queue of n partitions takes at most n times as much. The bound applies to what this process
// stores from now on, and counts what others have stored. All processes of a queue should have the
// same bound.
func WithMaxBytes(n int64) Option {
	return func(q *settings) error {
		q.maxBytes = n
		return checkBytes("WithMaxBytes", n)
	}
}

// WithMaxBytesPerKey bounds the memory of Redis, in bytes, of the queued and running messages of
// one key, counted as for [WithMaxBytes]. A job for which there is no room is refused with
// [ErrKeyFull]. Default: a quarter of WithMaxBytes. It cannot be more than that.
func WithMaxBytesPerKey(n int64) Option {
	return func(q *settings) error {
		q.maxBytesPerKey = n
		return checkBytes("WithMaxBytesPerKey", n)
	}
}

// WithMaxBytesPerPrincipal bounds the memory of Redis, in bytes, of the queued and running messages
// of one principal in each partition, counted as for [WithMaxBytes]. A job for which there is no
// room is refused with [ErrPrincipalFull]. Jobs without a principal have no such bound. Default: a
// quarter of WithMaxBytes, so that no single client fills the queue.
func WithMaxBytesPerPrincipal(n int64) Option {
	return func(q *settings) error {
		q.maxBytesPerPrincipal = n
		return checkBytes("WithMaxBytesPerPrincipal", n)
	}
}

// boundBytes sets the bounds that no option has set. A bound smaller than the largest payload is an
// error: such a job would always be refused, and its caller told to try again.
func boundBytes(q *settings) error {
	largest := int64(q.maxPayload) + int64(q.maxPayload)/4 + overhead
	if q.maxBytes == 0 {
		q.maxBytes = max(defaultBytes, 4*largest)
	}
	for _, bound := range []*int64{&q.maxBytesPerKey, &q.maxBytesPerPrincipal} {
		if *bound == 0 {
			*bound = max(q.maxBytes/4, min(largest, q.maxBytes))
		}
	}
	for name, n := range map[string]int64{
		"WithMaxBytes": q.maxBytes, "WithMaxBytesPerKey": q.maxBytesPerKey, "WithMaxBytesPerPrincipal": q.maxBytesPerPrincipal,
	} {
		if n < largest {
			return invalidOption("%s(%d): a payload of %d bytes, see WithMaxPayload, takes up to %d", name, n, q.maxPayload, largest)
		}
	}
	return nil
}

func checkBytes(name string, n int64) error {
	if n < 1 || n > maxBytes {
		return invalidOption("%s(%d): want 1 to %d", name, n, int64(maxBytes))
	}
	return nil
}

// fullBecause returns the bounds of a full queue, and what to do, for an error.
func fullBecause(q *settings, full error) string {
	switch {
	case errors.Is(full, ErrKeyFull):
		return fmt.Sprintf("a key has at most %d messages and %d bytes: try again later, or raise WithMaxDepthPerKey or WithMaxBytesPerKey", q.maxDepthPerKey, q.maxBytesPerKey)
	case errors.Is(full, ErrPrincipalFull):
		return fmt.Sprintf("a principal has at most %d bytes: try again later, or raise WithMaxBytesPerPrincipal", q.maxBytesPerPrincipal)
	default:
		return fmt.Sprintf("a partition has at most %d messages and %d bytes: try again later, make sure that workers run, "+
			"or raise WithMaxDepth or WithMaxBytes", q.maxDepth, q.maxBytes)
	}
}

var fullErrors = map[store.Full]error{store.KeyFull: ErrKeyFull, store.PrincipalFull: ErrPrincipalFull, store.QueueFull: ErrQueueFull}
