// Package listener keeps one Redis subscription alive: subscribe → ping and check → subscribe anew when one
// fails.
//
// Redis does not store a message for a subscriber that is not connected, and a connection can be dead
// without notice. So a Listener pings the idle connection under a deadline of
// its own, subscribes anew when it fails, and reports each new subscription, so
// that its owner can check for what it may have missed.
//
// The subscription can also be to another server than the client's commands: behind a
// proxy or a name whose target has changed, or because go-redis's Sentinel client closes its pooled
// connections to an old primary, but not a subscription. So with a
// client of one server a Listener also subscribes to a channel of its own, and publishes there
// through the client's pool. It subscribes anew if a message does not arrive. With
// Sentinel it does so as soon as the server of the client's commands says that there was no receiver.
package listener

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/ident"
)

const (
	// A connection that is idle for this long is pinged, and given up if the reply
	// does not arrive within the same time again.
	idle = 3 * time.Second

	minRedial, maxRedial = 50 * time.Millisecond, time.Second

	// A subscription is checked every checkInterval until a check has succeeded, and always with
	// Sentinel; after that every checkRarely, which is before it is idle. It is given up after checkTries
	// successive checks that failed.
	checkInterval = time.Second
	checkRarely   = idle - idle/6
	checkTries    = 3
	// checkTimeout is how long a check waits for its reply: Close may have to wait for it.
	checkTimeout = time.Second
)

// What a check publishes: the result of the one before.
const (
	checkFirst     = ""
	checkCounted   = "1" // the server counted a receiver
	checkUncounted = "0" // the server counted none
)

var errRenewed = errors.New("listener: Redis did not answer for some time")

var errElsewhere = errors.New("listener: the client's commands go to another server than its subscription")

// Client is the part of a go-redis client that a Listener needs.
type Client interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	Publish(ctx context.Context, channel string, message any) *redis.IntCmd
}

// Checker is a client for checks: they wait for checkTimeout, and are not sent again.
type Checker struct{ *redis.Client }

// NewChecker makes a Checker.
func NewChecker(client *redis.Client) Checker { return Checker{client.WithTimeout(checkTimeout)} }

// Publish publishes a message.
func (c Checker) Publish(ctx context.Context, channel string, message any) *redis.IntCmd {
	return c.Send(ctx, "publish", channel, message)
}

// Send sends a command that publishes.
func (c Checker) Send(ctx context.Context, args ...any) *redis.IntCmd {
	cmd := noRetryCmd{redis.NewIntCmd(ctx, args...)}
	_ = c.Process(ctx, cmd)
	return cmd.IntCmd
}

type noRetryCmd struct{ *redis.IntCmd }

// NoRetry tells go-redis not to send the command again.
func (noRetryCmd) NoRetry() bool { return true }

// FollowsSentinels reports whether the client's commands go to the primary that sentinels name.
func FollowsSentinels(rdb any) bool {
	client, ok := rdb.(interface{ Options() *redis.Options })
	return ok && client.Options().Addr == "FailoverClient" // go-redis's name for them all
}

// Listener keeps one subscription alive from Start to Close. It is safe for
// concurrent use.
type Listener struct {
	rdb       Client
	channel   string
	check     string // the channel of its own; "" when the subscription is not checked
	sentinels bool
	onUp      func()
	onDown    func(err error)
	onMessage func(payload string)

	up    atomic.Bool
	count atomic.Bool
	start sync.Once
	ctx   context.Context
	stop  context.CancelFunc
	done  chan struct{}
	renew atomic.Pointer[context.CancelCauseFunc] // ends the present subscription
	// The goroutines that check subscriptions. One that waits for a server which hangs
	// outlives its subscription, and does not delay the next.
	checks sync.WaitGroup
}

// New makes a Listener on channel. It calls onUp after each subscription that Redis confirmed and
// that passed its first check, if it is checked, and when the server does not count the
// subscription any more. It calls onDown, which may be nil, when it could not subscribe, but not
// again before the next onUp; and onMessage with each message. All are called on one goroutine. A
// subscription that is lost and at once made anew was never down.
func New(rdb Client, channel string, onUp func(), onDown func(err error), onMessage func(payload string)) *Listener {
	ctx, stop := context.WithCancel(context.Background())
	if client, ok := rdb.(*redis.Client); ok {
		rdb = NewChecker(client)
	}
	l := &Listener{
		rdb: rdb, channel: channel, onUp: onUp, onDown: onDown, onMessage: onMessage,
		ctx: ctx, stop: stop, done: make(chan struct{}),
	}
	if _, one := rdb.(interface{ Options() *redis.Options }); one {
		l.check, l.sentinels = channel+":"+ident.Random(8), FollowsSentinels(rdb)
	}
	return l
}

// Start subscribes in the background. Only the first call does anything.
func (l *Listener) Start() {
	l.start.Do(func() { go l.run() })
}

// Up reports whether there is a subscription, as far as is known.
func (l *Listener) Up() bool { return l.up.Load() }

// Counted reports whether the server of the client's commands counted the subscription among the
// receivers of the last check. If not, the subscription may be to another server, such as a
// replica, and receive messages there.
func (l *Listener) Counted() bool { return l.count.Load() }

// Renew subscribes anew: the present subscription's connection may be dead.
func (l *Listener) Renew() {
	if renew := l.renew.Load(); renew != nil {
		(*renew)(errRenewed)
	}
}

// Close ends the subscription and waits for its goroutine. It may be called
// twice, and before Start.
func (l *Listener) Close() {
	l.stop()
	l.start.Do(func() { close(l.done) })
	<-l.done
}

func (l *Listener) run() {
	defer close(l.done)
	defer l.checks.Wait()
	redial, down := minRedial, false
	for l.ctx.Err() == nil {
		wasUp, err := l.listen()
		switch {
		case wasUp:
			redial, down = minRedial, false
		case !down && l.ctx.Err() == nil:
			down = true
			if l.onDown != nil {
				l.onDown(err)
			}
		}
		select {
		case <-l.ctx.Done():
		case <-time.After(redial/2 + rand.N(redial/2)):
		}
		redial = min(2*redial, maxRedial)
	}
}

// listen holds one subscription until it fails, and reports whether it was up.
func (l *Listener) listen() (wasUp bool, err error) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	l.renew.Store(&cancel)
	channels := []string{l.channel}
	if l.check != "" {
		channels = append(channels, l.check)
	}
	sub := l.rdb.Subscribe(ctx, channels...)
	// A blocked Receive does not notice the end of its ctx, only that of its connection.
	unblock := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer func() {
		unblock()
		cancel(nil)
		l.up.Store(false)
		l.count.Store(false)
		_ = sub.Close()
	}()

	var seen atomic.Int64 // checks that have arrived
	checked := false
	up := func() {
		wasUp = true
		l.up.Store(true)
		l.onUp()
	}
	for {
		msg, err := receive(ctx, sub)
		if err != nil {
			return wasUp, err
		}
		switch msg := msg.(type) {
		case *redis.Subscription:
			switch {
			case msg.Count < len(channels): // the others are still to come
			case l.check == "":
				up()
			case !checked:
				checked = true
				l.checks.Go(func() { l.keepChecking(ctx, cancel, &seen) })
			}
		case *redis.Message:
			if msg.Channel != l.check {
				l.onMessage(msg.Payload)
				continue
			}
			seen.Add(1)
			counted := msg.Payload == checkCounted
			lost := l.count.Swap(counted) && !counted
			if msg.Payload != checkFirst && (!wasUp || lost) {
				up()
			}
		}
	}
}

// receive returns the next message of a subscription. One that is idle has to answer a PING.
func receive(ctx context.Context, sub *redis.PubSub) (any, error) {
	msg, err := sub.ReceiveTimeout(ctx, idle)
	if err != nil && ctx.Err() == nil && isTimeout(err) && sub.Ping(ctx) == nil {
		msg, err = sub.ReceiveTimeout(ctx, idle)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return msg, err
}

// keepChecking gives a subscription up if it is neither to the server of the client's commands, nor
// to one that gets its messages, or if that cannot be found out.
func (l *Listener) keepChecking(ctx context.Context, cancel context.CancelCauseFunc, seen *atomic.Int64) {
	last := checkFirst
	for sent, failed := int64(0), 0; ; {
		receivers, err := l.rdb.Publish(ctx, l.check, last).Result()
		switch {
		case err == nil && receivers == 0 && l.sentinels:
			cancel(errElsewhere)
		case err == nil:
			sent, failed = sent+1, 0
			first := last == checkFirst
			if last = checkCounted; receivers == 0 {
				last = checkUncounted
			}
			if first {
				continue
			}
		case errors.Is(err, redis.ErrPoolTimeout) && !l.sentinels: // says nothing
		default:
			if failed++; failed == checkTries {
				cancel(fmt.Errorf("listener: a subscription could not be checked: %w", err))
			}
		}
		pause := checkInterval
		if last != checkFirst && !l.sentinels {
			pause = checkRarely
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if last == checkUncounted && seen.Load() < sent {
			cancel(errElsewhere)
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
