// Package listener keeps one Redis subscription alive.
//
// Redis forgets a message that nobody hears, and a connection can be dead
// without a sign. So a Listener pings the idle connection under a deadline of
// its own, subscribes anew when it fails, and reports each new subscription, so
// that its owner looks again at whatever it waits for.
package listener

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// An idle connection is pinged after idle, and given up when the answer
	// does not come within another idle.
	idle = 3 * time.Second

	minRedial, maxRedial = 50 * time.Millisecond, time.Second
)

// Subscriber is the part of a go-redis client that a Listener needs.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Listener keeps one subscription alive from Start to Close. It is safe for
// concurrent use.
type Listener struct {
	rdb       Subscriber
	channel   string
	onUp      func()
	onDown    func(err error)
	onMessage func(payload string)

	up    atomic.Bool
	start sync.Once
	ctx   context.Context
	stop  context.CancelFunc
	done  chan struct{}
}

// New makes a Listener on channel. It calls onUp after each subscription that
// Redis confirmed, onDown when it could not subscribe, but not again before the next
// onUp, and onMessage with each message; all on one goroutine. A subscription that is
// lost and at once made anew was never down. A nil onDown is not called.
func New(rdb Subscriber, channel string, onUp func(), onDown func(err error), onMessage func(payload string)) *Listener {
	ctx, stop := context.WithCancel(context.Background())
	return &Listener{
		rdb: rdb, channel: channel, onUp: onUp, onDown: onDown, onMessage: onMessage,
		ctx: ctx, stop: stop, done: make(chan struct{}),
	}
}

// Start subscribes in the background. Only the first call does anything.
func (l *Listener) Start() {
	l.start.Do(func() { go l.run() })
}

// Up reports whether Redis has confirmed the subscription, as far as is known.
func (l *Listener) Up() bool { return l.up.Load() }

// Close ends the subscription and waits for its goroutine. It may be called
// twice, and before Start.
func (l *Listener) Close() {
	l.stop()
	l.start.Do(func() { close(l.done) })
	<-l.done
}

func (l *Listener) run() {
	defer close(l.done)
	redial, down := minRedial, false
	for l.ctx.Err() == nil {
		confirmed, err := l.listen()
		switch {
		case confirmed:
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

// listen holds one subscription until it fails, and reports whether Redis had
// confirmed it.
func (l *Listener) listen() (confirmed bool, err error) {
	sub := l.rdb.Subscribe(l.ctx, l.channel)
	// A blocked Receive does not see the end of its ctx, only of its connection.
	unblock := context.AfterFunc(l.ctx, func() { _ = sub.Close() })
	defer func() {
		unblock()
		l.up.Store(false)
		_ = sub.Close()
	}()

	pinged := false
	for {
		msg, err := sub.ReceiveTimeout(l.ctx, idle)
		if err != nil {
			if l.ctx.Err() != nil || pinged || !isTimeout(err) || sub.Ping(l.ctx) != nil {
				return confirmed, err
			}
			pinged = true
			continue
		}
		pinged = false
		switch msg := msg.(type) {
		case *redis.Subscription:
			confirmed = true
			l.up.Store(true)
			l.onUp()
		case *redis.Message:
			l.onMessage(msg.Payload)
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
