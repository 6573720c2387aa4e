package delayqueue

import (
	"errors"
	"fmt"
)

const (
	defaultBytes = 64 << 20
	maxBytes     = 1 << 40
	// What a message takes beside its payload, at most: its record, with the longest key, name
	// and principal, its entries in Redis, and what sealing adds.
	overhead = 6500
)

// WithMaxBytes bounds the memory of Redis, in bytes, that each partition takes: what is queued or
// running, dead letters, and what is remembered of messages that have ended, their results
// included. A job for which there is no room is refused with ErrQueueFull. A message counts as a quarter more
// than its payload, since Redis rounds up, and some 500 to 700 bytes; long keys, ids and principals count for each
// place that has them, and so does the cause of an attempt that failed: without room it is not kept. One that
// has ended counts as some 150 to 200 bytes and its result. Default 64 MiB, a quarter of a
// Redis of 256 MB, or four of the largest payloads (WithMaxPayload) if that is more. It must have room for one.
//
// What has ended takes half of it at most: beyond that the oldest is forgotten before its
// WithRetention is over, but for what ended within the last minute. Raise the bound to
// remember more: 1,000 messages a second without results take 700 MB for an hour.
//
// A queue of n partitions takes n times as much at most. The bound holds for what is stored from
// now on, and counts what others stored. All who use a queue should agree on it.
func WithMaxBytes(n int64) Option {
	return func(q *Queue) error {
		q.maxBytes = n
		return checkBytes("WithMaxBytes", n)
	}
}

// WithMaxBytesPerKey bounds the memory of Redis, in bytes, that the messages of one key take which
// are queued or running, counted as for WithMaxBytes. A job for which there is no room is
// refused with ErrKeyFull. Default: a quarter of WithMaxBytes, and it is no more than that.
func WithMaxBytesPerKey(n int64) Option {
	return func(q *Queue) error {
		q.maxBytesPerKey = n
		return checkBytes("WithMaxBytesPerKey", n)
	}
}

// WithMaxBytesPerPrincipal bounds the memory of Redis, in bytes, that the messages of one principal take
// in each partition which are queued or running, counted as for WithMaxBytes. A job for which
// there is no room is refused with ErrPrincipalFull. Jobs without a principal have no such
// bound. Default: a quarter of WithMaxBytes, so that no client alone fills the queue.
func WithMaxBytesPerPrincipal(n int64) Option {
	return func(q *Queue) error {
		q.maxBytesPerPrincipal = n
		return checkBytes("WithMaxBytesPerPrincipal", n)
	}
}

// boundBytes sets the bounds that no option did. One that the largest payload exceeds is an error:
// such a job would be refused for ever, and its caller told to try again.
func (q *Queue) boundBytes() error {
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

// fullBecause is what a full queue says of itself.
func (q *Queue) fullBecause(full error) string {
	switch {
	case errors.Is(full, ErrKeyFull):
		return fmt.Sprintf("at most %d messages and %d bytes may be: try later, or see WithMaxDepthPerKey and WithMaxBytesPerKey", q.maxDepthPerKey, q.maxBytesPerKey)
	case errors.Is(full, ErrPrincipalFull):
		return fmt.Sprintf("at most %d bytes may be: try later, or see WithMaxBytesPerPrincipal", q.maxBytesPerPrincipal)
	default:
		return fmt.Sprintf("at most %d messages and %d bytes may be: try later, or see WithMaxDepth and WithMaxBytes", q.maxDepth, q.maxBytes)
	}
}

// setArguments sets the arguments that many calls of scripts share.
func (q *Queue) setArguments() {
	q.spans = []any{fmt.Sprint(q.retention.Milliseconds(), " ", q.maxBytes), q.deadRetention.Milliseconds()}
	q.admission = fmt.Sprint(q.maxDepth, " ", q.maxDepthPerKey, " ", q.maxBytesPerKey, " ", q.maxBytesPerPrincipal)
}

// fullWords are what the scripts say of a full queue.
var fullWords = map[string]error{"key full": ErrKeyFull, "principal full": ErrPrincipalFull, "queue full": ErrQueueFull}
