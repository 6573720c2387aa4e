package core

import (
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/backoff"
)

// answers is what Redis has said to the questions of a line, whose calls are numbered as
// they join. A call is informed once a question was answered while it was in line: then it
// knows that its key is held, and its policy decides. Before that it waits for the answer.
//
// A failed question ends the calls that are not informed, since they know nothing of the key,
// and no others: informed calls wait on, and the first of them asks again.
//
// Guarded by waiters.mu.
type answers struct {
	joined   uint64 // number of the latest call
	informed uint64 // calls up to this one are informed
	failed   uint64 // calls up to this one fail, unless they are informed
	failure  error  // why the latest question had no answer; nil: it had one
	// When the oldest question was sent that no answer has followed; zero: none. A caller
	// who leaves takes its question along, but not what its silence says of Redis.
	asked time.Time
}

// joins numbers a call that joins.
func (ln *line) joins(c *waiter) {
	known := ln.held != nil || ln.informed > 0 && ln.informed == ln.joined && ln.failure == nil
	ln.joined++
	c.number = ln.joined
	if known {
		ln.informed = ln.joined
	}
}

// answered records that Redis has answered, and that the key is held.
func (ln *line) answered() {
	ln.replied()
	ln.inform(ln.joined)
}

// replied records that Redis has answered.
func (ln *line) replied() { ln.failure, ln.asked = nil, time.Time{} }

// inform tells the calls up to number that the key is held.
func (ln *line) inform(number uint64) {
	ln.wakeUninformed()
	ln.informed = max(ln.informed, number)
}

// unanswered records that a question failed with err. A full pool says nothing of Redis: then
// only the call that asked fails.
func (ln *line) unanswered(err error) {
	ln.asks++
	ln.askAt = time.Now().Add(backoff.Spread(backoff.Exponential(ln.asks, pollMin, pollMax)))
	if errors.Is(err, redis.ErrPoolTimeout) {
		return
	}
	ln.failure, ln.asked = err, time.Time{}
	ln.wakeUninformed()
	ln.failed = ln.joined
}

// wakeUninformed wakes the calls that are not informed: the latest ones.
func (ln *line) wakeUninformed() {
	for c := ln.last; c != nil && c.number > ln.informed; c = c.prev {
		c.poke()
	}
}

// timeout is how long a question that is sent now may wait for its answer.
func (ln *line) timeout(now time.Time, longest time.Duration) time.Duration {
	if ln.asked.IsZero() {
		ln.asked = now
	}
	return max(longest-now.Sub(ln.asked), time.Millisecond)
}

// failure is why the latest question of the call's line had no answer; nil: it had one.
func (c *waiter) failure() error {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return c.line.failure
}

// isOutage reports whether a question that failed with err says that Redis does not serve at
// all, which can end, rather than that it refuses this question. A full pool says nothing
// about Redis.
func isOutage(err error) bool {
	if _, replied := errors.AsType[redis.Error](err); replied {
		return isTransient(err)
	}
	return errors.Is(err, ErrUnavailable)
}
