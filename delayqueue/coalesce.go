package delayqueue

import (
	"strconv"
	"time"

	"github.com/perkey-go/perkey/core"
)

// Coalesce is [Policy] for calls of which only the latest matters, such as saves of a document: of
// each key, name and principal one call at most is parked. A newer call
// replaces the one that is parked, in its place in line; see [Job.Coalesce]. While the number of
// partitions changes ([Queue.Repartition]) each generation of partitions may have one: those that are parked in older
// ones are not replaced, and run first.
func Coalesce(q *Queue) core.ConflictPolicy {
	return policy{queue: q, coalesce: true}
}

// Debounce is [Coalesce] with a quiet period: a call that was parked runs when no newer one
// has come for quiet, and no later than maxDelay after the first of those that it
// replaced came. See [Job.Quiet]. Both are at least 1 ms and shorter than the queue's max age, quiet no longer than
// maxDelay. Until it runs, its key is reserved for it, so that no fresh call
// runs before it and is undone by it. Other calls of the key meet a conflict
// meanwhile, so quiet should be short. A call that finds its key neither held nor reserved runs at once: a policy is not
// asked about it. To have every call of a stream wait, enqueue jobs with [Job.Quiet].
func Debounce(q *Queue, quiet, maxDelay time.Duration) core.ConflictPolicy {
	return policy{queue: q, coalesce: true, debounce: true, quiet: quiet, maxDelay: maxDelay}
}

const flagCoalesces, flagParkedCoalesces = 'c', 'q'

// flags are what the scripts are told of how a job joins the queue.
func (j Job) flags() string {
	switch {
	case !j.Coalesce && !j.parked:
		return "-"
	case !j.Coalesce:
		return "p"
	}
	flags := string(rune(flagCoalesces))
	if j.parked {
		flags = string(rune(flagParkedCoalesces))
	}
	if j.Quiet > 0 {
		flags += strconv.FormatInt(ceilMilliseconds(j.MaxDelay), 10)
	}
	return flags
}

// checkQuiet says what is wrong with a quiet period and its bound, "" if nothing is.
func checkQuiet(quiet, maxDelay, maxAge time.Duration) string {
	switch {
	case quiet < time.Millisecond || quiet > maxDelay:
		return "want a quiet period of at least 1ms, and no longer than the longest delay"
	case ceilMilliseconds(maxDelay) >= ceilMilliseconds(maxAge): // it would be too old when it is due
		return "the longest delay is not shorter than the max age, " + maxAge.String()
	}
	return ""
}
