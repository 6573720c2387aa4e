package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/along"
	"github.com/perkey-go/perkey/internal/luascript"
)

// command is a script call. A call in flight cannot be cancelled. So that its caller can leave
// nevertheless, either the caller takes the reply, or what the call did is undone. A swap of state
// decides which.
type command struct {
	script    *luascript.Script
	record    string
	noRetry   bool // never to be sent again after a lost reply: the second reply would mean something else
	plain     bool // it is one of those that a script does together
	twice     bool // that was sent twice: the second time may have found it done
	publishes bool // it publishes a message that another process waits for
	ctx       callContext
	args      []any
	texts     []string          // that args point to, which saves an allocation for each
	numbers   []int64           // the same
	used      luascript.Counted // of a release: ARGV[2]
	bound     bound             // see addBound
	call      luascript.Call    // as it was sent last
	cmd       redis.Cmd         // the call's
	rider     along.Rider       // nil: nobody rides along
	ride      *redis.Cmd        // the rider's, as it was sent last; nil: none
	besides   [1]redis.Cmder    // ride, which saves an allocation
	calls     [1]*luascript.Call

	until  time.Time // when the caller leaves; zero: not known
	at     time.Time // when it was sent; zero: it was not
	beside int       // how many that batch has

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
	val     any
	err     error
	clock   *serverClock // of a command with a bound
	written time.Duration
	ride    *redis.Cmd // nil: none was sent
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
	c.ctx.Context, c.record, c.token, c.call, c.rider, c.ride = nil, "", "", luascript.Call{}, nil, nil
	c.besides[0], c.calls[0] = nil, nil
	c.cmd, c.until, c.at = redis.Cmd{}, time.Time{}, time.Time{}
	c.records, c.plain, c.twice, c.publishes, c.fresh, c.tries, c.ran, c.flight = nil, false, false, false, false, 0, false, nil
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

// first reports whether a command goes before acquires: others wait for what it does, and a key is held.
func (c *command) first() bool { return c.script != acquireScript && c.script != acquireAllScript }

// undo undoes a command whose reply no caller takes.
func (d *deployment) undo(c *command, r result) {
	switch {
	case c.token == "" || c.fresh && Unsent(r.err) || (c.fresh || c.records != nil) && notSignedIn(r.err):
	case c.records == nil:
		reply, _ := parseAcquire(r)
		d.events.Orphaned(d.key(c), c.token, reply)
	default:
		n, _ := integers(r.val, 1)
		grants := grantsOf(n, len(c.records))
		for i, record := range c.records {
			reply := AcquireReply{}
			if grants != nil {
				reply = grants[i]
			}
			d.events.Orphaned(KeyOf(d.prefix, record), c.token, reply)
		}
	}
}

// key is the key that a command is about.
func (d *deployment) key(c *command) string { return KeyOf(d.prefix, c.record) }

// sent returns the command as a call for go-redis to send; see [luascript.Script.Call].
func (c *command) sent(noRetry bool) *luascript.Call {
	c.used.Reset(c.used.Number)
	c.call = c.script.CallIn(&c.ctx, &c.cmd, c.args, noRetry)
	return &c.call
}

// takeAlong has a rider on the same server ride along.
func (c *command) takeAlong(d *deployment, rider along.Rider) {
	if rider != nil && d.single && rider.Client() == d.rdb {
		c.rider = rider
	}
}

// rides returns what is sent before or after the command, if the rider has anything to send.
func (c *command) rides(ctx context.Context) (before, after []redis.Cmder) {
	switch {
	case c.rider == nil:
	case c.script != releaseScript:
		c.ride = c.rider.Acquire(ctx, c.record, c.token)
		after = c.besides[:]
	default:
		if c.ride = c.rider.Release(ctx); c.ride != nil {
			before = c.besides[:]
		}
	}
	c.besides[0] = c.ride
	return before, after
}

func (c *command) result() result {
	val, err := c.call.Result()
	return result{val, err, c.bound.clock, c.bound.written, c.ride}
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

// direct reports whether a caller who would wait for the reply anyway can send its command itself, which saves two switches of
// goroutines: nothing else is under way, and it need not dial. After true the caller leaves b.group.
func (d *deployment) direct(b *batcher) bool {
	return !d.patient && b.heardLately() && b.group.Enter()
}

// do sends a release, on its caller's goroutine if it can. It reports whether go-redis may have sent it twice.
func (d *deployment) do(cmd *command) (r result, twice bool) {
	b := d.batcher(cmd.record)
	switch {
	case d.direct(b):
		defer b.group.Leave()
		r = b.exec(cmd)
	default:
		if !b.submit(cmd) { // the Locker is closed, and has no goroutines any more
			go func() { d.deliver(cmd, b.exec(cmd)) }()
		}
		var err error
		if r, _, err = d.await(context.Background(), "release", b, cmd, ReplyTimeout, nil); err != nil {
			return result{err: err}, false
		}
	}
	twice = d.single && (cmd.twice || cmd.used.Twice()) // on a Cluster a redirect sends it again, and the first time nothing ran
	d.recycle(cmd)
	return r, twice
}

// ask sends a command and waits for its reply, for as long as the caller can and timeout lasts, and
// until stop. After an error, or when stopped, what the command does is undone. A command with
// nothing to undo may be sent until the Locker is closed.
func (d *deployment) ask(ctx context.Context, op string, cmd *command, timeout time.Duration, stop <-chan struct{}) (r result, stopped bool, err error) {
	b := d.batcher(cmd.record)
	if ctx.Done() == nil && timeout >= ReplyTimeout && d.life.Open() && d.direct(b) {
		if r, again := b.try(cmd, timeout); !again {
			b.load.waited(cmd, r)
			return r, false, nil
		}
		timeout -= time.Since(cmd.at)
	}
	if cmd.token != "" {
		cmd.expect(ctx, timeout)
	}
	if !b.submit(cmd) {
		key := d.key(cmd)
		d.recycle(cmd)
		return r, false, Closed(op, key)
	}
	return d.await(ctx, op, b, cmd, timeout, stop)
}

// expect records for how long the caller can wait.
func (c *command) expect(ctx context.Context, timeout time.Duration) {
	c.until = time.Now().Add(timeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(c.until) {
		c.until = deadline
	}
}

// await is ask for a command that was submitted to b.
func (d *deployment) await(ctx context.Context, op string, b *batcher, cmd *command, timeout time.Duration, stop <-chan struct{}) (r result, stopped bool, err error) {
	closing := d.life.Closing()
	if cmd.token == "" {
		closing = nil
	}
	defer cmd.timer.Stop()
	lost, waited := *b.lost.Load(), time.Duration(0)
	for err == nil && !stopped {
		pause := min(timeout-waited, suspectAfter)
		waited += pause
		cmd.timer.Reset(pause)
		select {
		case r = <-cmd.reply:
			b.load.waited(cmd, r)
			return r, false, nil
		case <-stop:
			stopped = true
		case <-ctx.Done():
			err = CallerGone(ctx, op, d.key(cmd))
		case <-cmd.timer.C:
			if b.suspect(); waited >= timeout && len(cmd.reply) == 0 { // else the reply came first
				err = Unavailable(op, d.key(cmd), fmt.Errorf("no reply within %s", timeout))
			}
		case <-lost:
			err = Unavailable(op, d.key(cmd), errNoReply)
		case <-closing:
			err = Closed(op, d.key(cmd))
		}
	}
	b.abandon(cmd)
	return r, stopped, err
}
