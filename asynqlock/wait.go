package asynqlock

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// wait is how long a task has been refused its key, without a run in between.
//
// asynq's message has no place for it but the text of the last error, which asynq keeps with
// the task: there it survives restarts, costs no key of its own, and is in plain sight. Any
// other error there tells that the task ran, or was archived, since: the wait is over.
type wait struct {
	refusals int
	since    time.Time
}

const waitTime = "2006-01-02T15:04:05.000Z"

func (w wait) String() string {
	return fmt.Sprintf("(refusal %d since %s)", w.refusals, w.since.UTC().Format(waitTime))
}

// Other middleware may have put words around it.
var waitPattern = regexp.MustCompile(`(?s)asynqlock: not run: .*\(refusal (\d{1,9}) since ([0-9T:.-]+Z)\)`)

func waitIn(lastErr string) (w wait, ok bool) {
	found := waitPattern.FindStringSubmatch(lastErr)
	if found == nil {
		return wait{}, false
	}
	since, err := time.Parse(waitTime, found[2])
	if err != nil {
		return wait{}, false
	}
	refusals, _ := strconv.Atoi(found[1]) // the pattern holds
	return wait{refusals: refusals, since: since}, true
}

// waitOf is the wait of a task until now.
func waitOf(info *asynq.TaskInfo, now time.Time) wait {
	if w, ok := waitIn(info.LastErr); ok {
		return w
	}
	if origin, ok := originIn(info.ID, info.Headers); ok && info.LastErr == "" {
		return wait{refusals: origin.Refusals, since: origin.Since}
	}
	return wait{since: now}
}
