package core

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/internal/luascript"
)

// command is a script call under way. A call in flight cannot be called back: so
// that its caller can leave nevertheless, either the caller takes the reply, or
// what it did is taken back. The swap of state decides which.
type command struct {
	script *luascript.Script
	record string
	once   bool // never to be sent again after a lost reply: a second one would mean something else
	ctx    callContext
	args   []any
	call   luascript.Call // as it was sent last

	// What is to be taken back if nobody takes the reply; "": nothing.
	key, entry string
	keys       []string // if there are more: key is the first

	tries int  // how often a pipeline with it has failed
	fresh bool // the entry is in no record unless this command put it there

	flight *flight // that it is in; guarded by the batcher's mu
	state  atomic.Int32
	reply  chan result // holds one
	timer  *time.Timer

	onReply func(result) // called with the reply, if no caller waits for it
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
	return &command{args: make([]any, 0, 12), reply: make(chan result, 1), timer: timer}
}

func (d *deployment) command(ctx context.Context, s *luascript.Script, once bool, record string, args ...any) *command {
	c := d.commands.Get().(*command)
	c.script, c.record, c.once = s, record, once
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

// recycle takes back a command whose reply was taken.
func (d *deployment) recycle(c *command) {
	if c.onReply != nil {
		c.onReply, c.ctx.gone = nil, nil // others may have the channel
	}
	c.ctx.Context, c.record, c.key, c.entry, c.call = nil, "", "", "", luascript.Call{}
	c.keys, c.fresh, c.tries, c.flight = nil, false, 0, nil
	clear(c.args)
	d.commands.Put(c)
}

// deliver hands the reply to the caller, if there is one.
func (d *deployment) deliver(c *command, r result) {
	if onReply := c.onReply; onReply != nil {
		d.recycle(c)
		onReply(r)
		return
	}
	if c.state.CompareAndSwap(replyAwaited, replyTaken) {
		c.reply <- r
		return
	}
	d.takeBack(c, r)
}

// abandon leaves the command, which was submitted to n, to itself.
func (n *batcher) abandon(c *command) {
	if c.state.CompareAndSwap(replyAwaited, replyAbandoned) {
		close(c.ctx.gone)
		n.forget(c)
		return
	}
	n.d.takeBack(c, <-c.reply)
}

// unwanted reports whether nobody waits for the reply any more.
func (c *command) unwanted() bool {
	return c.state.Load() == replyAbandoned || c.onReply != nil && c.ctx.Err() != nil
}

// takeBack undoes a command whose reply nobody uses.
func (d *deployment) takeBack(c *command, r result) {
	key, keys, entry := c.key, c.keys, c.entry
	switch {
	case entry == "" || c.fresh && isUnsent(r.err):
	case keys == nil:
		reply, _ := parseAcquire(r)
		d.events.orphaned(key, entry, reply.fence, reply.server)
	default:
		for _, key := range keys {
			d.events.orphaned(key, entry, 0, 0)
		}
	}
}

// sent returns the command as the call that go-redis is to send; see [luascript.Script.Call].
func (c *command) sent(once bool) *luascript.Call {
	c.call = c.script.Call(&c.ctx, c.args, once)
	return &c.call
}

func (c *command) result() result {
	val, err := c.call.Result()
	return result{val, err}
}

// callContext has the values of a caller's ctx, and ends when the caller has gone:
// that ends go-redis's own retries.
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
