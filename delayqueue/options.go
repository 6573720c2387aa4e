package delayqueue

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

const (
	maxNameLen    = 64 // of a queue
	maxPartitions = 1024
	countMost     = 100_000 // the most messages that Count reads

	// A second run of a call whose reply was lost finds in the message's record
	// what the first did: the record must outlive go-redis's retries.
	minRetention = time.Second
)

// Option configures a [Queue].
type Option func(*settings) error

// settings are what options set.
type settings struct {
	name, prefix, service                 string
	operator                              bool // made by Open
	maxAge, retention, deadRetention      time.Duration
	reservationWindow                     time.Duration
	maxPayload, maxResult                 int
	maxDepth, maxDepthPerKey, maxAttempts int
	maxBytes, maxBytesPerKey              int64 // 0: the default
	maxBytesPerPrincipal                  int64
	halt                                  Halt
	split                                 int // into so many partitions; 0: the default
	sealer                                *sealer
	observer                              Observer
	countMost                             int
}

// validName checks the name of a queue or a service.
func validName(name string) bool {
	return name != "" && len(name) <= maxNameLen && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}

// WithPrefix sets the prefix of the names of all keys and channels in Redis. It must be the Locker's, on another Redis
// too: [NewWorker] and core.Locker.Guard refuse another one, since workers and guards, and tools, would miss each other.
// Default "perkey"; 1 to 64 bytes, no braces, white space or control bytes.
func WithPrefix(prefix string) Option {
	return func(q *settings) error {
		if !ident.ValidPrefix(prefix) {
			return invalidOption("WithPrefix(%q): want 1 to %d bytes, without braces, white space and control bytes", prefix, ident.MaxPrefixLen)
		}
		q.prefix = prefix
		return nil
	}
}

// WithService names the service that uses the queue. The queue belongs to the first service that names itself;
// processes of another service are refused from then on ([ErrOtherService]). So two services that share a Redis, a
// prefix and a queue name do not run each other's messages. All processes of a service must have the same name. Default
// "": the process is never refused, and does not protect the queue. An operator's tool uses [Open]. 1 to 64 letters,
// digits, dots, underscores and hyphens.
func WithService(name string) Option {
	return func(q *settings) error {
		if !validName(name) {
			return invalidOption("WithService(%q): want 1 to %d of A-Z a-z 0-9 . _ -", name, maxNameLen)
		}
		q.service = name
		return nil
	}
}

// WithMaxAge sets how long after its arrival a message may be started; an older message is never
// started, nor retried. Default 15 min; 1 ms to 366 days.
func WithMaxAge(d time.Duration) Option {
	return func(q *settings) error {
		q.maxAge = d
		return checkDuration("WithMaxAge", d, time.Millisecond)
	}
}

// WithMaxPayload sets the size of the largest payload, in bytes. Default 1 MiB and 64 KiB: a
// request's body with its headers; 1 byte to 512 MiB.
func WithMaxPayload(n int) Option {
	return func(q *settings) error {
		q.maxPayload = n
		return checkCount("WithMaxPayload", n, 512<<20)
	}
}

// WithMaxResult sets the size of the largest result, in bytes. Default 64 KiB and 4 KiB: a
// response's body with its headers; 1 byte to 64 MiB.
func WithMaxResult(n int) Option {
	return func(q *settings) error {
		q.maxResult = n
		return checkCount("WithMaxResult", n, 64<<20)
	}
}

// WithPartitions splits the queue by the key of a message, or by its id if it has no key. The partitions are in
// different slots of a Cluster, so that the queue grows over several nodes. Each is polled separately: an idle worker
// sends one script every 10 s to each, or every third of a claim lease if that is shorter.
//
// The number is chosen when the queue is made, and never changes. A process with another number is refused
// ([ErrOtherLayout]): use a queue of another name, and serve both until the first one is empty. A key's order does not
// hold between the two. Default: the number that the queue has, and for a new one 1, or 16 with a
// [redis.ClusterClient]; at most 1024.
func WithPartitions(n int) Option {
	return func(q *settings) error {
		q.split = n
		return checkCount("WithPartitions", n, maxPartitions)
	}
}

// WithReservationWindow sets for how long a key stays reserved for its parked messages after the last of them was
// parked or tried. Until then no fresh call gets the key before them, whether through a Guard or a Locker. With a
// longer window fresh calls wait longer if all workers are gone. Default 1 min; 100 ms to 24 h. With 0 nothing is
// reserved, and fresh calls may overtake. All processes of a queue should have the same window.
func WithReservationWindow(d time.Duration) Option {
	return func(q *settings) error {
		q.reservationWindow = d
		if d != 0 && (d < core.MinTTL || d > core.MaxTTL) {
			return invalidOption("WithReservationWindow(%s): want 0, or %s to %s", d, core.MinTTL, core.MaxTTL)
		}
		return nil
	}
}

// WithMaxDepth sets how many messages may be queued or running in each partition. A job beyond that
// is refused with [ErrQueueFull]. Default 100,000; 3000 with a [redis.ClusterClient]: when the slot of so
// many moves to another node, the two nodes serve nothing else for less than 50 ms, unless keys,
// names and principals are long and all different. [WithPartitions] makes room for more. At least 1.
func WithMaxDepth(n int) Option {
	return func(q *settings) error {
		q.maxDepth = n
		return checkCount("WithMaxDepth", n, math.MaxInt32)
	}
}

// WithMaxDepthPerKey sets how many messages of one key may be queued or running. Default 1000; at least 1.
func WithMaxDepthPerKey(n int) Option {
	return func(q *settings) error {
		q.maxDepthPerKey = n
		return checkCount("WithMaxDepthPerKey", n, math.MaxInt32)
	}
}

// WithMaxAttempts sets how often a message is tried before it becomes a dead letter. To find its key held is not an
// attempt. The option of the worker's Queue counts, not that of the Queue that stored the job. Default 5; at least 1.
//
// A message whose worker process died has its last attempt alone in its Worker, which runs and
// claims nothing else meanwhile: so a message that kills its process makes no dead letters of
// others. With 1 the first attempt is the last, and is not alone.
func WithMaxAttempts(n int) Option {
	return func(q *settings) error {
		q.maxAttempts = n
		return checkCount("WithMaxAttempts", n, math.MaxInt32)
	}
}

// WithRetention sets how long the status of a done, expired, cancelled or superseded message is stored, or of a dead
// letter without room, and its id is refused a second time. They may be stored for up to twice as long, or less if the
// messages that have ended have no more room: see [WithMaxBytes]. It should be longer than the client's retries, some
// 15 s. Default 1 h; at least 1 s, and more than two claim leases of its Workers ([WithClaimLease]).
func WithRetention(d time.Duration) Option {
	return func(q *settings) error {
		q.retention = d
		return checkDuration("WithRetention", d, minRetention)
	}
}

// WithDeadRetention sets how long a dead letter is stored, with its payload, while there is room: see [WithMaxBytes].
// If it is raised, older dead letters keep a long payload only for the time that was set when they died. Default 7
// days; at least 1 s.
func WithDeadRetention(d time.Duration) Option {
	return func(q *settings) error {
		q.deadRetention = d
		return checkDuration("WithDeadRetention", d, minRetention)
	}
}

// WithQueueObserver sets the [Observer] of the Queue, and of its Workers that have none of their own ([WithObserver]).
// Default: [DefaultObserver], which logs warnings. Nil is a core.ErrInvalidOption.
func WithQueueObserver(o Observer) Option {
	return func(q *settings) error {
		if nilcheck.IsNil(o) {
			return invalidOption("WithQueueObserver(nil)")
		}
		q.observer = o
		return nil
	}
}

func checkDuration(name string, d, least time.Duration) error {
	if d < least || d > maxDuration {
		return invalidOption("%s(%s): want %s to %s", name, d, least, maxDuration)
	}
	return nil
}

func checkCount(name string, n, most int) error {
	if n < 1 || n > most {
		return invalidOption("%s(%d): want 1 to %d", name, n, most)
	}
	return nil
}

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("delayqueue: %w: %s", core.ErrInvalidOption, fmt.Sprintf(format, args...))
}
