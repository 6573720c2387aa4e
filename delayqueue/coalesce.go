package delayqueue

import (
	"time"

	"github.com/perkey-go/perkey/core"
)

// Coalesce is [Policy] for calls of which only the latest matters, such as saves of a document: for
// each key, name and principal at most one call is parked. A newer call replaces it at its place in
// the FIFO; see [Job].Coalesce. A call that was given to a handler is not replaced: while it waits for its next attempt, fresh
// calls run, and it runs after them. If it must not undo a newer call, it has to find that out by a
// version.
func Coalesce(q *Queue) core.ConflictPolicy {
	return policy{queue: q, coalesce: true}
}

// Debounce is [Coalesce] with a quiet period: a call that was parked runs when no newer one has
// arrived for quiet, and at most maxDelay after the arrival of the first of the calls that it
// replaced. See [Job].QuietPeriod. Both are at least 1 ms and
// shorter than the queue's max age, and quiet is no longer than maxDelay.
//
// Until the call runs, its key is reserved for it, so that no fresh call runs before it and is
// undone by it. Other calls of the key meet a conflict meanwhile, so quiet should be short. A call
// whose key is neither held nor reserved runs at once: a policy is not asked about it. To make
// every call of a stream wait, enqueue jobs with Job.QuietPeriod.
func Debounce(q *Queue, quiet, maxDelay time.Duration) core.ConflictPolicy {
	return policy{queue: q, coalesce: true, debounce: true, quiet: quiet, maxDelay: maxDelay}
}
