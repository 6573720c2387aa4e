package core

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/backoff"
)

// A batcher carries script calls to one node of Redis. Calls that meet in it are sent
// in one pipeline: while its goroutines are out with a pipeline each, what comes in is
// collected for the next one (group commit: Gawlick & Kinkade, 1985). A call that
// comes alone is sent alone, at once.
//
// Its goroutines are kept: a new one would grow its stack anew under each command,
// which costs as much as a fifth of the round trip.
type batcher struct {
	d    *deployment
	node *redis.Client // that the calls go to; nil: go-redis finds it

	mu      sync.Mutex
	work    sync.Cond
	queue   []*command
	spare   []*command // the queue's next array
	left    int        // commands in the queue whose callers have left
	idle    int        // goroutines that wait for work
	out     int        // goroutines that are with Redis, or about to be
	lastOut time.Time
	closed  bool // its goroutines end when they have nothing to do
	health
}

const (
	// With more out at once there would be less to send together; with fewer a
	// call would wait for its turn even when nobody is in the way.
	batcherWidth = 3
	// If no call has returned for this long, a connection may be dead, so more calls may
	// be out, up to batcherMax.
	batcherSlow = 20 * time.Millisecond
	batcherMax  = 64
)

func newBatcher(d *deployment, node *redis.Client) *batcher {
	n := &batcher{d: d, node: node}
	n.work.L = &n.mu
	return n
}

// submit has cmd sent, or, while the node is down, answered with why it is not. It reports
// false when the Locker is closed.
func (n *batcher) submit(cmd *command) bool {
	n.mu.Lock()
	if n.d.closed() { // the batcher's own goroutines may be the caller
		n.mu.Unlock()
		return false
	}
	n.suspect(time.Now())
	if down := n.down; down != nil {
		n.mu.Unlock()
		n.d.deliver(cmd, result{err: down})
		return true
	}
	defer n.mu.Unlock()
	if n.out < batcherWidth || n.out < batcherMax && time.Since(n.lastOut) >= batcherSlow {
		if n.idle == 0 {
			if !n.d.background(n.run) {
				return false
			}
		} else {
			n.idle--
			n.work.Signal()
		}
		n.out++
	}
	cmd.queuedIn = n
	n.queue = append(n.queue, cmd)
	return true
}

// enter lets a caller who waits in any case go out itself, when nobody else is out or
// about to be: that saves two switches of goroutines. It must leave.
func (n *batcher) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.out > 0 || n.down != nil {
		return false
	}
	n.out++
	return true
}

func (n *batcher) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case len(n.queue) == 0:
		n.out--
	case n.idle > 0: // somebody takes its place
		n.idle--
		n.work.Signal()
	case !n.d.background(n.run):
		n.out--
	}
}

func (n *batcher) run() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		for {
			n.mu.Unlock()
			runtime.Gosched() // let callers that were just woken join this batch
			n.mu.Lock()
			if len(n.queue) == 0 {
				break
			}
			batch, unsent := n.take()
			n.mu.Unlock()
			n.d.drop(unsent)
			if len(batch) > 0 {
				n.send(batch)
			}
			clear(batch)
			n.mu.Lock()
			n.spare = batch[:0]
		}
		n.out--
		if n.closed || n.idle >= batcherWidth {
			return
		}
		n.idle++
		n.work.Wait()
	}
}

// take empties the queue: a batch to send, and the commands whose callers have left, which
// are not sent. Called with mu held.
func (n *batcher) take() (batch, unsent []*command) {
	batch, n.queue, n.spare = n.queue, n.spare, nil
	n.lastOut = time.Now()
	if n.left > 0 {
		n.left = 0
		batch, unsent = split(batch)
	}
	var f *flight
	if len(batch) > 1 {
		f = &flight{gone: make(chan struct{})}
	}
	for _, c := range batch {
		c.queuedIn, c.flight = nil, f
		if f != nil && c.tell == nil {
			f.wanted++
		}
	}
	return batch, unsent
}

// flight is a batch that is on its way. It can wait long for a connection: when all its
// callers have left it is given up.
type flight struct {
	wanted int           // callers that have not left; guarded by batcher.mu
	gone   chan struct{} // closed when the last one leaves
}

// split takes the commands whose callers have left out of a batch.
func split(batch []*command) (wanted, unsent []*command) {
	wanted = batch[:0]
	for _, c := range batch {
		if c.unwanted() {
			c.queuedIn = nil
			unsent = append(unsent, c)
		} else {
			wanted = append(wanted, c)
		}
	}
	return wanted, unsent
}

// forget notes that the caller of a command has left. What is queued does not outgrow the
// callers that there are: the queue is cleared up when half of it is for nobody.
func (n *batcher) forget(c *command) {
	n.mu.Lock()
	var unsent []*command
	switch {
	case c.queuedIn == n:
		if n.left++; n.left > 32 && n.left > len(n.queue)/2 {
			n.left = 0
			n.queue, unsent = split(n.queue)
		}
	case c.flight != nil:
		if c.flight.wanted--; c.flight.wanted == 0 {
			close(c.flight.gone)
		}
	}
	n.mu.Unlock()
	n.d.drop(unsent)
}

// drop answers commands that were not sent, since their callers have left.
func (d *deployment) drop(unsent []*command) {
	for _, c := range unsent {
		d.deliver(c, result{err: errUnwanted})
	}
}

var errUnwanted = unsentError{errors.New("its caller has left")}

// close has the goroutines end that have nothing to do. Until the Locker is closed, callers that
// have come to this batcher are served still. It reports whether the node was down.
func (n *batcher) close() (wasDown bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	wasDown = n.down != nil
	n.closed, n.down = true, nil
	n.out += n.idle // they are woken
	n.idle = 0
	n.work.Broadcast()
	return wasDown
}

// batcher returns the one for a record's node.
func (d *deployment) batcher(record string) *batcher {
	node := d.node(record)
	d.batchersMu.Lock()
	defer d.batchersMu.Unlock()
	n := d.batchers[node]
	if node != nil {
		d.lookAtNodes(time.Now())
	}
	if n == nil {
		n = newBatcher(d, node)
		n.closed = d.closed()
		d.batchers[node] = n
	}
	return n
}

// send sends commands, and delivers their replies. It tries again itself what go-redis would:
// go-redis would send all of a pipeline again, for callers that have left too.
func (n *batcher) send(batch []*command) {
	d := n.d
	if len(batch) == 1 {
		d.deliver(batch[0], n.exec(batch[0]))
		return
	}
	pipe := d.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(batch))
	for i, c := range batch {
		cmds[i] = c.redis(pipe.Process, true)
	}
	n.sends()
	_, failure := pipe.Exec(&callContext{Context: context.Background(), gone: batch[0].flight.gone}) // each command has its own error
	n.returns(failure)
	again := n.toRepeat(batch, cmds)
	if len(again) == 0 && isUnreachable(failure) {
		n.fail(failure)
	}
	for i, c := range batch {
		val, err := cmds[i].Result()
		if errors.Is(err, context.Canceled) { // the flight had no connection yet
			err = errUnwanted
		}
		switch {
		case len(again) > 0 && again[0] == c:
			again = again[1:]
			n.repeat(c, err)
		case !redis.HasErrorPrefix(err, "NOSCRIPT") || !d.background(func() { d.deliver(c, n.exec(c)) }):
			d.deliver(c, result{val, err})
		}
	}
}

// toRepeat returns the commands of a batch that the node did not answer, and which are to be
// sent again, after a pause.
func (n *batcher) toRepeat(batch []*command, cmds []*redis.Cmd) (again []*command) {
	tries := 0
	for i, c := range batch {
		err := cmds[i].Err()
		if (isUnreachable(err) || isTransient(err)) && c.tries < n.d.retries && (!c.once || !mayHaveRun(err)) && !c.unwanted() {
			c.tries++
			tries = max(tries, c.tries)
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		timer := time.NewTimer(backoff.Spread(backoff.Exponential(tries, repeatPauseMin, repeatPauseMax)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-n.d.over:
		}
	}
	return again
}

// Pauses before a pipeline is sent again: go-redis's own.
const repeatPauseMin, repeatPauseMax = 8 * time.Millisecond, 512 * time.Millisecond

// repeat queues a command again that failed with err, unless the node is down by now.
func (n *batcher) repeat(c *command, err error) {
	n.mu.Lock()
	if n.d.closed() || n.down != nil {
		n.mu.Unlock()
		n.d.deliver(c, result{err: err})
		return
	}
	c.queuedIn = n
	n.queue = append(n.queue, c)
	n.mu.Unlock()
}

// exec sends one command by itself.
func (n *batcher) exec(c *command) result {
	n.sends()
	cmd := c.redis(n.d.rdb.Process, c.once)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		args := c.arguments()
		args[0], args[1] = "eval", c.script.source
		cmd = c.redis(n.d.rdb.Process, c.once)
	}
	val, err := cmd.Result()
	n.returns(err)
	if isUnreachable(err) {
		n.fail(err)
	}
	return result{val, err}
}
