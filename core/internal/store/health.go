package store

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// health is what is known of a node. Whoever asks it something says so, and when it replied: batches, renewals,
// refreshes, the checks of the subscription, and probes. A node that is silent while it is asked is probed. It is down when
// a command has failed after its retries, or when nothing was heard for nearly ReplyTimeout. Then what is in flight is
// given up, and every command fails at once, until the node is heard again: callers learn of the outage without
// waiting for one another, and Redis finds no backlog when it is back. Renewals go on.
type health struct {
	flights atomic.Int64 // questions of the batcher without a reply
	// In nanoseconds since born: when the first of these was asked, when the batcher last had a reply, and when anybody had. Renewals
	// and refreshes have another client, and hear the node although the batcher's connections are dead.
	asked, replied, heard atomic.Int64
	clock                 serverClock
	born                  time.Time
	unanswered            atomic.Int64                  // when the last probe was sent that had no reply
	lost                  atomic.Pointer[chan struct{}] // closed when what is in flight is given up

	mu     sync.Mutex    // the batcher's too
	probes chan struct{} // closed when the probes that are under way have ended; nil: none are
	told   chan struct{} // closed when the last warning has been told; nil: there was none
}

const (
	// A node that is silent for this long is probed.
	suspectAfter = time.Second
	// The pauses between probes grow between these two. The first is sent at once. With probeTimeout the longer one bounds
	// how late it is noticed that the node is back.
	probePauseMin, probePauseMax = 20 * time.Millisecond, 100 * time.Millisecond
	// A probe without a reply is waited for so long, and given up so late: it may have to dial.
	probeTimeout, probeLife = 300 * time.Millisecond, time.Second
	// A node that is silent for this long is down, so that it is known after ReplyTimeout, with the last probe.
	downAfter = ReplyTimeout - probeTimeout - probePauseMax
)

var errNoReply = errors.New("no reply to anything for nearly " + ReplyTimeout.String())

func (h *health) init() {
	h.born = time.Now()
	h.clock.born = h.born
	h.lost.Store(new(make(chan struct{})))
}

// sends records that the node is asked something.
func (h *health) sends() {
	if h.flights.Add(1) == 1 {
		h.asked.Store(int64(time.Since(h.born)))
	}
}

// returns records that a question has ended, with the node's reply unless err says otherwise.
func (b *batcher) returns(err error) {
	b.flights.Add(-1)
	b.reply(err)
}

// reply records what the batcher's client got. It reports whether that is a reply.
func (b *batcher) reply(err error) bool {
	if !b.hear(err) {
		return false
	}
	b.replied.Store(b.heard.Load())
	if b.isDown() && b.accept("") {
		b.d.events.LookAgain() // whoever waits has to ask again
	}
	return true
}

// hear records what any client got. It reports whether that is a reply.
func (h *health) hear(err error) bool {
	if isUnreachable(err) || SaysNothing(err) {
		return false
	}
	h.heard.Store(int64(time.Since(h.born)))
	return true
}

// age is how long ago the node was heard.
func (h *health) age() time.Duration { return time.Since(h.born) - time.Duration(h.heard.Load()) }

// heardLately reports whether the batcher's client has a connection, as far as is known.
func (h *health) heardLately() bool {
	return time.Since(h.born)-time.Duration(h.replied.Load()) < suspectAfter
}

// silence is for how long the node has not replied although it was asked.
func (h *health) silence() time.Duration {
	if h.flights.Load() == 0 {
		return 0
	}
	return time.Since(h.born) - time.Duration(max(h.asked.Load(), h.replied.Load()))
}

// deaf reports whether the last probe had no reply, and nothing else has since.
func (h *health) deaf() bool { return h.unanswered.Load() > h.replied.Load() }

// isDown reports whether every command fails at once.
func (b *batcher) isDown() bool { return b.group.Refused() != nil }

// suspect has the node probed if it is silent: one connection may be dead, or this process was stopped.
func (b *batcher) suspect() {
	if b.silence() >= suspectAfter {
		b.investigate()
	}
}

// watch runs a question that the batcher does not send.
func (b *batcher) watch(question func() error) {
	timer := time.AfterFunc(suspectAfter, func() { b.investigate() })
	err := question()
	timer.Stop()
	if b.hear(err); isUnreachable(err) {
		b.investigate()
	}
}

// investigate has the node probed, if that is not under way. The channel is closed when it has replied, or cannot be asked.
func (b *batcher) investigate() (probes <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.probes == nil {
		b.probes = make(chan struct{})
		if !b.d.life.Background(b.probe) {
			defer b.probed()
		}
	}
	return b.probes
}

// probed ends what investigate began. Called with mu held.
func (b *batcher) probed() {
	close(b.probes)
	b.probes = nil
}

// probe probes the node until it replies. While it is silent for too long it is down.
func (b *batcher) probe() {
	b.sends()
	began, marked, wasDown := time.Since(b.born), false, false
	for pause := probePauseMin; ; pause = min(2*pause, probePauseMax) {
		asked := time.Since(b.born)
		if b.alive() || b.replied.Load() > int64(began) {
			break
		}
		again := b.deaf() // else this process may have been stopped meanwhile
		b.unanswered.Store(int64(asked))
		if again && b.silence() >= downAfter && !marked {
			if marked = true; !b.markDown() {
				break
			}
		}
		select {
		case <-time.After(pause):
		case <-b.d.life.Over():
		}
		if b.d.life.Closed() {
			break
		}
		if b.isDown() {
			wasDown = true
			b.d.forgetGone()
		}
	}
	if b.flights.Add(-1); time.Since(b.born) >= began+probeTimeout && !wasDown {
		b.d.events.LookAgain() // messages and refreshes may be lost although it was not down
	}
	b.mu.Lock()
	b.probed()
	b.mu.Unlock()
	if b.isDown() && !b.d.life.Closed() { // since the last probe
		b.investigate()
	}
}

// fail marks the node as down, and has it probed.
func (b *batcher) fail(err error) {
	if b.down(err) {
		b.investigate()
	}
}

// markDown marks a silent node as down, and has nobody wait for what is in flight. It reports false if it cannot.
func (b *batcher) markDown() bool {
	down := b.down(errNoReply) || b.isDown()
	close(*b.lost.Swap(new(make(chan struct{}))))
	if down && b.d.subscription.Up() { // else that is under way
		b.d.subscription.Renew() // it hears nothing either
	}
	return down
}

// down marks the node as down: every command that waits to be sent fails. It reports false if it was down, or has left the
// Cluster. For a Cluster whose slots are not known yet it cannot tell which node failed.
func (b *batcher) down(err error) bool {
	if b.d.cluster != nil && b.node == nil {
		return false
	}
	down := unsentError{err}
	b.mu.Lock()
	queue, up := b.group.Refuse(down)
	if up {
		b.warn(Warning{Detail: "calls fail until it answers", Err: err})
	}
	b.mu.Unlock()
	for _, c := range queue {
		b.d.deliver(c, result{err: down})
	}
	return up
}

// accept marks the node as up, and says why. It reports whether it was down.
func (b *batcher) accept(why string) (was bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.load.forget()
	if was = b.group.Accept(); was {
		b.warn(Warning{Detail: why, Resolved: true})
	}
	return was
}

// warn has a warning told. Nobody waits for that: an observer may be slow. Called with mu held.
func (b *batcher) warn(w Warning) {
	w.Kind = WarnUnreachable
	if b.node != nil {
		w.Node = b.node.Options().Addr
	}
	before, told := b.told, make(chan struct{})
	b.told = told
	b.d.life.Background(func() {
		if before != nil {
			<-before
		}
		b.d.events.Warn(w)
		close(told)
	})
}

// alive reports whether the node answers within probeTimeout. A later answer counts too, but nobody waits for it: go-redis does not
// give up a TLS connection before its DialTimeout.
func (b *batcher) alive() bool {
	answered := make(chan bool, 1)
	b.d.life.Background(func() { answered <- b.answers() })
	select {
	case yes := <-answered:
		return yes
	case <-time.After(probeTimeout):
		return false
	}
}

// answers reports whether the node answers, with whatever reply, to a renewal of nothing: a command
// for which the Locker has the rights.
func (b *batcher) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeLife)
	defer cancel()
	rdb := b.d.rdb
	client, _ := b.d.rdb.(*redis.Client)
	if client = cmp.Or(client, b.node); client != nil {
		client = client.WithTimeout(probeTimeout)
		silent := b.heard.Load() <= b.unanswered.Load() // else others have a connection, and perhaps the client too
		if b.isDown() && silent && !connects(ctx, client) {
			return false
		}
		rdb = client
	}
	// It is not tried again: a Redis that is loading replies, and go-redis would go on until the time is over.
	call := renewScript.Call(ctx, append(renewScript.Args(nil, 1), RecordName(b.d.prefix, "probe"), "", 1), true)
	call.Send(ctx, rdb)
	_, err := call.Result()
	return b.reply(err)
}

// connects reports whether the client can make a connection. Once as many attempts of a pool have failed as it has connections, go-redis
// attempts only one a second: so probes must not be among them. A subscription's connection is made as the pool's are, hooks included,
// and none of them.
func connects(ctx context.Context, client *redis.Client) bool {
	sub := client.Subscribe(ctx)
	defer func() { _ = sub.Close() }()
	return !isUnreachable(sub.Ping(ctx))
}

// Heard returns nil at once if the node was heard lately. Otherwise it is asked; while it was heard for less than ReplyTimeout
// nobody waits for that.
func (d *deployment) Heard(ctx context.Context, record string) error {
	b := d.batcher(record)
	age := b.age()
	if age < suspectAfter && !b.isDown() {
		return nil
	}
	key := KeyOf(d.prefix, record)
	if err := b.group.Refused(); err != nil {
		return Unavailable("acquire", key, err)
	}
	probes := b.investigate()
	if age < ReplyTimeout {
		return nil
	}
	select {
	case <-probes:
	case <-time.After(ReplyTimeout):
	case <-*b.lost.Load():
	case <-ctx.Done():
		return CallerGone(ctx, "acquire", key)
	case <-d.life.Closing():
		return Closed("acquire", key)
	}
	if b.age() < ReplyTimeout {
		return nil
	}
	return Unavailable("acquire", key, errNoReply)
}
