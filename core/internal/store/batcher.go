package store

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/groupcommit"
	"github.com/perkey-go/perkey/internal/luascript"
)

// batcher sends the script calls for one node of Redis, and tracks the node's health. Calls that
// arrive together share a pipeline; a call that arrives alone is sent alone, at once. See
// [groupcommit].
type batcher struct {
	d     *deployment
	node  *redis.Client // to which the calls are sent; nil: go-redis finds it
	group *groupcommit.Group[*command]
	health
	load pressure
}

const (
	batcherWidth = 3
	batcherMax   = 64
)

func newBatcher(d *deployment, node *redis.Client) *batcher {
	b := &batcher{d: d, node: node}
	b.init()
	b.group = groupcommit.New(groupcommit.Options[*command]{
		Run: b.send, Gone: (*command).unwanted, Drop: d.drop, Width: batcherWidth, Max: batcherMax, Go: d.life.Background,
		Fits: b.load.fits, Late: b.load.late, Slow: b.load.slow, First: (*command).first,
	})
	return b
}

// submit has cmd sent, or, while the node is down, fails it at once. It reports false when the
// Locker is closed.
func (b *batcher) submit(cmd *command) bool {
	if b.d.life.Closed() { // the batcher's own goroutines may be the caller
		return false
	}
	err := b.group.Add(cmd)
	switch {
	case err == nil:
		b.suspect()
	case errors.Is(err, groupcommit.ErrClosed):
		return false
	default:
		b.d.deliver(cmd, result{err: err})
	}
	return true
}

// flight is a batch that has been sent, or waits for a connection: when all its callers have left
// it is given up.
type flight struct {
	callContext     // ends when the last one leaves
	wanted      int // callers that have not left; guarded by batcher.mu
}

func (b *batcher) newFlight(batch []*command) *flight {
	f := &flight{callContext: callContext{context.Background(), make(chan struct{})}}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range batch {
		if c.onReply == nil && !c.unwanted() {
			c.flight = f
			f.wanted++
		}
	}
	return f
}

// forget records that the caller of a command has left.
func (b *batcher) forget(c *command) {
	b.mu.Lock()
	if f := c.flight; f != nil {
		if f.wanted--; f.wanted == 0 {
			close(f.gone)
		}
	}
	b.mu.Unlock()
	b.group.Forget()
}

// drop answers commands that were not sent because their callers have left.
func (d *deployment) drop(unsent []*command) {
	for _, c := range unsent {
		d.deliver(c, result{err: errUnwanted})
	}
}

var errUnwanted = unsentError{errors.New("its caller has left")}

// send sends commands in one pipeline, and delivers their replies. It does go-redis's retries
// itself: go-redis would send the whole pipeline again, for callers that have left too.
func (b *batcher) send(batch []*command) {
	d := b.d
	if len(batch) == 1 {
		d.deliver(batch[0], b.exec(batch[0]))
		return
	}
	now := time.Now()
	for _, c := range batch {
		c.at, c.beside = now, len(batch)
	}
	b.sends()
	failure := b.pipeline(b.newFlight(batch), batch)
	b.returns(failure)
	if !isUnreachable(failure) {
		b.load.took(time.Since(now))
	}
	again := b.toRetry(batch)
	if len(again) == 0 && isUnreachable(failure) {
		b.fail(failure)
	}
	retried := len(again) > 0 && !d.life.Closed() && b.group.Add(again...) == nil // unless the node is down by now
	for _, c := range batch {
		if len(again) > 0 && again[0] == c {
			if again = again[1:]; retried {
				continue // the command may have been recycled by now
			}
		}
		r := c.result()
		if c.onReply != nil || c.unwanted() {
			b.load.waited(c, r)
		}
		// The flight had no connection yet. A client of several servers sets this error on commands that ran, too, if it
		// was about to send others of the pipeline again.
		if d.single && errors.Is(r.err, context.Canceled) {
			r.err = errUnwanted
		}
		d.deliver(c, r)
	}
}

// toRetry pauses, and returns the commands of a batch that the node did not answer and that are to
// be sent again.
func (b *batcher) toRetry(batch []*command) (again []*command) {
	tries := 0
	for _, c := range batch {
		if b.again(c) {
			tries = max(tries, c.tries)
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		select {
		case <-time.After(backoff.Spread(backoff.Exponential(tries, retryPauseMin, retryPauseMax))):
		case <-b.d.life.Over():
		}
	}
	return again
}

// again reports whether a command that has been sent is to be sent again.
func (b *batcher) again(c *command) bool {
	err := c.call.Err()
	if !isUnreachable(err) && !isTransient(err) || c.tries >= b.d.retries || c.noRetry && MayHaveRun(err) || c.unwanted() {
		return false
	}
	c.tries, c.ran = c.tries+1, c.ran || MayHaveRun(err)
	return true
}

// The pauses before a pipeline is sent again, as go-redis has them.
const retryPauseMin, retryPauseMax = 8 * time.Millisecond, 512 * time.Millisecond

// exec sends one command by itself.
func (b *batcher) exec(c *command) result {
	r := b.once(c, c.noRetry)
	if isUnreachable(r.err) {
		b.fail(r.err)
	}
	return r
}

// try sends one command by itself, once, for a caller who waits for so long. It reports whether it is to be sent again.
func (b *batcher) try(c *command, timeout time.Duration) (r result, again bool) {
	defer b.group.Leave()
	r = b.once(c, true)
	if again = b.again(c) && time.Since(c.at) < timeout; !again && isUnreachable(r.err) {
		b.fail(r.err)
	}
	return r, again
}

// once is exec without the news that the node is away.
func (b *batcher) once(c *command, noRetry bool) result {
	b.sends()
	call, now := c.sent(noRetry), time.Now()
	c.at, c.beside = now, 1
	c.calls[0] = call
	before, after := c.rides(&c.ctx)
	if c.publishes && before == nil {
		// Redis writes last to the client for which it had output first. With the PING that is this client, so
		// the message is sent before the reply, and its receiver wakes up before this process.
		before = []redis.Cmder{redis.NewStatusCmd(&c.ctx, "ping")}
	}
	if before == nil && after == nil {
		call.Send(&c.ctx, b.d.rdb)
	} else {
		_ = luascript.Between(&c.ctx, b.d.rdb, before, c.calls[:], after)
	}
	r := c.result()
	b.returns(r.err)
	if !isUnreachable(r.err) {
		b.load.took(time.Since(now))
	}
	return r
}
