package core

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A lane carries script calls to one node of Redis. Calls that meet in it travel
// together: while its goroutines are out with a pipeline each, what comes in is
// collected for the next one (group commit: Gawlick & Kinkade, 1985). A call that
// comes alone is sent alone, at once.
//
// Its goroutines are kept: a new one would grow its stack anew under each command,
// which costs as much as a fifth of the round trip.
type lane struct {
	locker *Locker

	mu      sync.Mutex
	work    sync.Cond
	queue   []*command
	spare   []*command // the queue's next array
	idle    int        // goroutines that wait for work
	out     int        // goroutines that are with Redis, or about to be
	lastOut time.Time
	closed  bool
}

const (
	// With more out at once there would be less to send together; with fewer a
	// call would wait for its turn even when nobody is in the way.
	laneWidth = 3
	// When nobody came back for so long, a connection may be dead: others go out,
	// up to laneMax.
	laneSlow = 20 * time.Millisecond
	laneMax  = 64
)

func newLane(l *Locker) *lane {
	n := &lane{locker: l}
	n.work.L = &n.mu
	return n
}

// submit has cmd sent. It reports false when the Locker is closed.
func (n *lane) submit(cmd *command) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.locker.state.Load() == lockerClosed { // the lane's own goroutines may be the caller
		return false
	}
	if n.out >= laneWidth && (n.out >= laneMax || time.Since(n.lastOut) < laneSlow) {
		n.queue = append(n.queue, cmd)
		return true
	}
	if n.idle == 0 {
		if !n.locker.background(n.run) {
			return false
		}
	} else {
		n.idle--
		n.work.Signal()
	}
	n.out++
	n.queue = append(n.queue, cmd)
	return true
}

// enter lets a caller who waits in any case go out itself, when nobody else is out or
// about to be: that saves two switches of goroutines. It must leave.
func (n *lane) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.out > 0 {
		return false
	}
	n.out++
	return true
}

func (n *lane) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case len(n.queue) == 0:
		n.out--
	case n.idle > 0: // somebody takes its place
		n.idle--
		n.work.Signal()
	case !n.locker.background(n.run):
		n.out--
	}
}

func (n *lane) run() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		for {
			n.mu.Unlock()
			runtime.Gosched() // who is about to submit, after a reply that just came, travels along
			n.mu.Lock()
			if len(n.queue) == 0 {
				break
			}
			batch := n.queue
			n.queue, n.spare = n.spare, nil
			n.lastOut = time.Now()
			n.mu.Unlock()
			n.locker.send(batch)
			clear(batch)
			n.mu.Lock()
			n.spare = batch[:0]
		}
		n.out--
		if n.closed || n.idle >= laneWidth {
			return
		}
		n.idle++
		n.work.Wait()
	}
}

func (n *lane) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.work.Broadcast()
}

// lane returns the one for a record's node.
func (l *Locker) lane(record string) *lane {
	node := l.node(record)
	l.lanesMu.Lock()
	defer l.lanesMu.Unlock()
	n := l.lanes[node]
	if n == nil {
		n = newLane(l)
		n.closed = l.state.Load() == lockerClosed
		l.lanes[node] = n
	}
	return n
}

// command is a script call under way. A call in flight cannot be called back: so
// that its caller can go away all the same, either the caller takes the reply, or
// what came of it is taken back. The swap of state decides which.
type command struct {
	script *script
	record string
	single onceCmd
	once   bool // never to be sent again by go-redis: a second reply would mean something else
	ctx    callContext
	args   [12]any
	n      int
	many   []any // the arguments, if there are more

	// What is to be taken back if nobody takes the reply; "": nothing.
	key, entry string
	keys       []string // if there are more: key is the first

	state atomic.Int32
	reply chan result // holds one
	timer *time.Timer

	tell func(result) // takes the reply in place of a caller who waits
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
	return &command{reply: make(chan result, 1), timer: timer}
}

func (l *Locker) command(ctx context.Context, s *script, once bool, record string, args ...any) *command {
	c := l.commands.Get().(*command)
	c.script, c.record, c.once = s, record, once
	c.ctx.Context = ctx
	if c.ctx.gone == nil {
		c.ctx.gone = make(chan struct{})
	}
	c.args[0], c.args[1], c.args[2], c.args[3] = "evalsha", s.hash, 1, record
	c.n = 4 + copy(c.args[4:], args)
	c.state.Store(replyAwaited)
	return c
}

// add adds an argument.
func (c *command) add(arg any) {
	c.args[c.n] = arg
	c.n++
}

// recycle takes back a command whose reply was taken.
func (l *Locker) recycle(c *command) {
	if c.tell != nil {
		c.tell, c.ctx.gone = nil, nil // others may have the channel
	}
	c.ctx.Context, c.record, c.key, c.entry, c.single.Cmd = nil, "", "", "", nil
	c.many, c.keys = nil, nil
	clear(c.args[:])
	l.commands.Put(c)
}

// deliver hands the reply to the caller, if there is one.
func (l *Locker) deliver(c *command, r result) {
	if tell := c.tell; tell != nil {
		l.recycle(c)
		tell(r)
		return
	}
	if c.state.CompareAndSwap(replyAwaited, replyTaken) {
		c.reply <- r
		return
	}
	l.takeBack(c, r)
}

// abandon leaves the command to itself.
func (l *Locker) abandon(c *command) {
	if c.state.CompareAndSwap(replyAwaited, replyAbandoned) {
		close(c.ctx.gone)
		return
	}
	l.takeBack(c, <-c.reply)
}

// takeBack gives back what came of a command whose reply nobody uses.
func (l *Locker) takeBack(c *command, r result) {
	key, keys, entry := c.key, c.keys, c.entry
	switch {
	case entry == "":
	case keys == nil:
		reply, _ := parseAcquire(r)
		l.later(func() { l.waiters.orphaned(key, entry, reply.fence, reply.server) })
	default:
		l.later(func() { l.waiters.orphanedAll(keys, entry) })
	}
}

// send sends commands that go to one node, and delivers their replies.
func (l *Locker) send(batch []*command) {
	if len(batch) == 1 {
		l.deliver(batch[0], l.exec(batch[0]))
		return
	}
	pipe := l.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(batch))
	for i, c := range batch {
		cmds[i] = c.redis(pipe.Process)
	}
	_, _ = pipe.Exec(context.Background()) // each command has its own error
	for i, c := range batch {
		val, err := cmds[i].Result()
		again := err != nil && (redis.HasErrorPrefix(err, "NOSCRIPT") || !c.once && mayHaveRun(err))
		// One command's trouble must not hold up the others, nor theirs it.
		if !again || !l.background(func() { l.deliver(c, l.exec(c)) }) {
			l.deliver(c, result{val, err})
		}
	}
}

// exec sends one command by itself.
func (l *Locker) exec(c *command) result {
	cmd := c.redis(l.rdb.Process)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		args := c.arguments()
		args[0], args[1] = "eval", c.script.source
		cmd = c.redis(l.rdb.Process)
	}
	val, err := cmd.Result()
	return result{val, err}
}

func (c *command) arguments() []any {
	if c.many != nil {
		return c.many
	}
	return c.args[:c.n]
}

// redis gives the command to process as go-redis knows it.
func (c *command) redis(process func(context.Context, redis.Cmder) error) *redis.Cmd {
	cmd := redis.NewCmd(&c.ctx, c.arguments()...)
	cmd.SetFirstKeyPos(3)
	if c.once {
		c.single.Cmd = cmd
		_ = process(&c.ctx, &c.single)
	} else {
		_ = process(&c.ctx, cmd)
	}
	return cmd
}

// onceCmd keeps go-redis from sending a command again by itself: whether a
// release ran before decides what its answer means.
type onceCmd struct{ *redis.Cmd }

func (*onceCmd) NoRetry() bool { return true }

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
