package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// command is a script call. A call in flight cannot be cancelled. So that its caller can leave
// nevertheless, either the caller takes the reply, or what the call did is undone. A swap of state
// decides which.
type command struct {
	script    *luascript.Script
	record    string
	noRetry   bool // never to be sent again after a lost reply: the second reply would mean something else
	publishes bool // it publishes a message that another process waits for
	ctx       callContext
	args      []any
	texts     []string       // that args point to, which saves an allocation for each
	numbers   []int64        // the same
	call      luascript.Call // as it was sent last
	cmd       redis.Cmd      // the call's

	token   string   // whose grant is to be undone if no caller takes the reply; "": none
	records []string // of all keys, if there are several; record is the first

	tries int  // how often a pipeline with it has failed
	ran   bool // one of these tries may have run
	fresh bool // only this command can have put the token into a record

	flight *flight // that it is in; guarded by the batcher's mu
	state  atomic.Int32
	reply  chan result // holds one
	timer  *time.Timer

	onReply func(result) // called with the reply, instead of a caller that waits
}

type result struct {
	val any
	err error
}

const (
	replyAwaited int32 = iota
	replyTaken
	replyAbandoned
)

func newCommand() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &command{args: make([]any, 0, 12), texts: make([]string, 0, 3), numbers: make([]int64, 0, 1), reply: make(chan result, 1), timer: timer}
}

func (d *deployment) command(ctx context.Context, s *luascript.Script, noRetry bool, record string, args ...any) *command {
	c := d.commands.Get().(*command)
	c.script, c.record, c.noRetry = s, record, noRetry
	c.ctx.Context = ctx
	if c.ctx.gone == nil {
		c.ctx.gone = make(chan struct{})
	}
	c.args = append(append(s.Args(c.args[:0], 1), record), args...)
	c.state.Store(replyAwaited)
	return c
}

// add adds an argument.
func (c *command) add(arg any) { c.args = append(c.args, arg) }

func (c *command) addText(text string) {
	c.texts = append(c.texts, text)
	c.add(&c.texts[len(c.texts)-1])
}

func (c *command) addNumber(n int64) {
	c.numbers = append(c.numbers, n)
	c.add(&c.numbers[len(c.numbers)-1])
}

// recycle returns a command to the pool.
func (d *deployment) recycle(c *command) {
	if c.onReply != nil {
		c.onReply, c.ctx.gone = nil, nil // other commands may share the channel
	}
	c.ctx.Context, c.record, c.token, c.call = nil, "", "", luascript.Call{}
	c.cmd = redis.Cmd{}
	c.records, c.publishes, c.fresh, c.tries, c.ran, c.flight = nil, false, false, 0, false, nil
	clear(c.args)
	clear(c.texts)
	c.texts, c.numbers = c.texts[:0], c.numbers[:0]
	d.commands.Put(c)
}

// deliver gives the reply to the caller. If that has left, what the command did is undone.
func (d *deployment) deliver(c *command, r result) {
	if r.err != nil && c.ran {
		r.err = retriedError{r.err}
	}
	if onReply := c.onReply; onReply != nil {
		d.recycle(c)
		onReply(r)
		return
	}
	if c.state.CompareAndSwap(replyAwaited, replyTaken) {
		c.reply <- r
		return
	}
	d.undo(c, r)
}

// abandon gives up waiting for a command that was submitted to b. What it does is undone when its
// reply arrives.
func (b *batcher) abandon(c *command) {
	if c.state.CompareAndSwap(replyAwaited, replyAbandoned) {
		close(c.ctx.gone)
		b.forget(c)
		return
	}
	b.d.undo(c, <-c.reply)
}

// unwanted reports whether no caller waits for the reply any more.
func (c *command) unwanted() bool {
	return c.state.Load() == replyAbandoned || c.onReply != nil && c.ctx.Err() != nil
}

// undo undoes a command whose reply no caller takes.
func (d *deployment) undo(c *command, r result) {
	switch {
	case c.token == "" || c.fresh && Unsent(r.err) || (c.fresh || c.records != nil) && notSignedIn(r.err):
	case c.records == nil:
		reply, _ := parseAcquire(r)
		d.events.Orphaned(d.key(c), c.token, reply.Fence, reply.Server)
	default:
		for _, record := range c.records {
			d.events.Orphaned(KeyOf(d.prefix, record), c.token, 0, 0)
		}
	}
}

// key is the key that a command is about.
func (d *deployment) key(c *command) string { return KeyOf(d.prefix, c.record) }

// sent returns the command as a call for go-redis to send; see [luascript.Script.Call].
func (c *command) sent(noRetry bool) *luascript.Call {
	c.call = c.script.CallIn(&c.ctx, &c.cmd, c.args, noRetry)
	return &c.call
}

func (c *command) result() result {
	val, err := c.call.Result()
	return result{val, err}
}

// callContext has the values of a caller's ctx, and ends when the caller has left: that ends
// go-redis's own retries.
type callContext struct {
	context.Context
	gone chan struct{}
}

func (c *callContext) Deadline() (time.Time, bool) { return time.Time{}, false }

func (c *callContext) Done() <-chan struct{} { return c.gone }

func (c *callContext) Err() error {
	select {
	case <-c.gone:
		return context.Canceled
	default:
		return nil
	}
}

// do sends a command for a caller that waits for the reply in any case.
func (d *deployment) do(cmd *command) result {
	batcher := d.batcher(cmd.record)
	switch {
	case batcher.group.Enter():
		defer batcher.group.Leave()
		return batcher.exec(cmd)
	case batcher.submit(cmd):
		return <-cmd.reply
	default: // the Locker is closed, and has no goroutines any more
		return batcher.exec(cmd)
	}
}

// ask sends a command and waits for its reply, for as long as the caller can and timeout lasts, and
// until stop. After an error, or when stopped, what the command does is undone. A command with
// nothing to undo may be sent until the Locker is closed.
func (d *deployment) ask(ctx context.Context, op string, cmd *command, timeout time.Duration, stop <-chan struct{}) (r result, stopped bool, err error) {
	b := d.batcher(cmd.record)
	if !b.submit(cmd) {
		key := d.key(cmd)
		d.recycle(cmd)
		return r, false, Closed(op, key)
	}
	closing := d.life.Closing()
	if cmd.token == "" {
		closing = nil
	}
	cmd.timer.Reset(timeout)
	defer cmd.timer.Stop()
	select {
	case r = <-cmd.reply:
		return r, false, nil
	case <-stop:
		stopped = true
	case <-ctx.Done():
		err = CallerGone(ctx, op, d.key(cmd))
	case <-cmd.timer.C:
		err = Unavailable(op, d.key(cmd), fmt.Errorf("no reply within %s", timeout))
	case <-closing:
		err = Closed(op, d.key(cmd))
	}
	b.abandon(cmd)
	return r, stopped, err
}
