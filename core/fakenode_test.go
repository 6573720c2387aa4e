package core_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// fakeNode is a Redis in a bubble of synctest, with a clock of its own. It can die, and
// it can be stopped: what was sent to it meanwhile is run when it goes on.
type fakeNode struct {
	*miniredis.Miniredis

	mu      sync.Mutex
	dead    bool
	stopped bool
	mute    bool // runs what it gets, but its answers are lost
	backlog []func()
	conns   map[*fakeConn]struct{}
	ahead   time.Duration // of the true time, in the beginning
	rate    float64       // at which its clock runs
	began   time.Time
}

// fakeConn takes what is written at once, as a socket does: at the other end of its pipe the node may
// be about to write, too.
type fakeConn struct {
	net.Conn
	node   *fakeNode
	out    chan []byte
	lag    time.Duration // of what is written
	closed chan struct{}
	once   sync.Once
}

func newFakeConn(conn net.Conn, n *fakeNode) *fakeConn {
	c := &fakeConn{Conn: conn, node: n, out: make(chan []byte, 1000), closed: make(chan struct{})}
	go func() {
		for {
			select {
			case b := <-c.out:
				time.Sleep(c.lag)
				c.node.look()
				_, _ = c.Conn.Write(b)
			case <-c.closed:
				return
			}
		}
	}()
	return c
}

func (c *fakeConn) shut() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *fakeConn) send(b []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case c.out <- bytes.Clone(b):
		return len(b), nil
	}
}

func (c *fakeConn) Write(b []byte) (int, error) {
	n := c.node
	n.mu.Lock()
	if n.stopped {
		b := bytes.Clone(b)
		n.backlog = append(n.backlog, func() {
			_ = c.SetDeadline(time.Time{}) // the client's is over
			_, _ = c.send(b)
		})
		n.mu.Unlock()
		return len(b), nil
	}
	mute := n.mute
	n.mu.Unlock()
	if mute {
		n.look()
		_, err := c.Conn.Write(b)
		time.Sleep(time.Millisecond) // it has run by then
		_ = c.shut()
		return len(b), err
	}
	return c.send(b)
}

func (c *fakeConn) Close() error {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
	if n.stopped {
		n.backlog = append(n.backlog, func() { _ = c.shut() })
		return nil
	}
	return c.shut()
}

func (n *fakeNode) dial(context.Context, string, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := n.Dial()
	if err != nil {
		return nil, err
	}
	c := newFakeConn(conn, n)
	n.conns[c] = struct{}{}
	return c, nil
}

// bubblePool is a pool in which nobody waits for a connection: go-redis keeps the timers of
// those who did for others, and one that was made in another bubble never fires in this.
const bubblePool = 1000

func (n *fakeNode) client(t *testing.T) *redis.Client {
	t.Helper()
	return n.distant(t, 0)
}

// distant returns a client whose requests take a while to arrive.
func (n *fakeNode) distant(t *testing.T, lag time.Duration) *redis.Client {
	t.Helper()
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := n.dial(ctx, network, addr)
		if err == nil {
			c.(*fakeConn).lag = lag
		}
		return c, err
	}
	return redistest.Client(t, &redis.Options{
		Addr: "127.0.0.1:1", Dialer: dial, PoolSize: bubblePool,
		// They keep a mutex while they wait for the node, and so the bubble's clock still.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// die ends every connection, and refuses new ones. The data stays.
func (n *fakeNode) die() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = true
	for c := range n.conns {
		_ = c.shut()
	}
	clear(n.conns)
}

func (n *fakeNode) stop()        { n.locked(func() { n.stopped = true }) }
func (n *fakeNode) loseAnswers() { n.locked(func() { n.mute = true }) }

func (n *fakeNode) locked(do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do()
}

// unread is how often something was sent to the node since it stopped.
func (n *fakeNode) unread() (times int) {
	n.locked(func() { times = len(n.backlog) })
	return times
}

// live ends all that.
func (n *fakeNode) live() {
	var backlog []func()
	n.locked(func() { n.dead, n.stopped, n.mute, backlog, n.backlog = false, false, false, n.backlog, nil })
	for _, f := range backlog {
		f()
	}
}

// clock is how far its clock is ahead.
func (n *fakeNode) clock() time.Duration {
	return n.ahead + time.Duration((n.rate-1)*float64(time.Since(n.began)))
}

// look sets its clock, if that is not the bubble's.
func (n *fakeNode) look() {
	if d := n.clock(); d != 0 {
		n.SetTime(time.Now().Add(d))
	}
}

// onFakeNodes runs test in virtual time, with several nodes.
func onFakeNodes(t *testing.T, many int, test func(t *testing.T, nodes []*fakeNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var nodes []*fakeNode
		for range many {
			n := &fakeNode{Miniredis: miniredis.NewMiniRedis(), rate: 1, began: time.Now(), conns: map[*fakeConn]struct{}{}}
			n.ClockTTL(true)
			nodes = append(nodes, n)
		}
		t.Cleanup(func() {
			time.Sleep(2 * time.Second) // until go-redis, whose clients are closed, dials no longer
			for _, n := range nodes {
				n.live()
				n.die() // go-redis before 9.23 keeps a connection open that is made while its client closes
				n.Close()
			}
		})
		test(t, nodes)
	})
}

func clientsOf(t *testing.T, nodes []*fakeNode) (clients []redis.UniversalClient) {
	t.Helper()
	for _, n := range nodes {
		clients = append(clients, n.client(t))
	}
	return clients
}

// overNodes makes a quorum that is closed with the test.
func overNodes(t *testing.T, nodes []*fakeNode, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.NewQuorum(clientsOf(t, nodes), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, n := range nodes {
			n.live()
		}
		_ = l.Close()
	})
	return l
}

// warmAll returns when the release of what warmed them has come to all nodes: those that are too many for a quorum have it later.
func warmAll(t *testing.T, l *core.Locker, nodes []*fakeNode) {
	t.Helper()
	warm(t, l)
	redistest.Eventually(t, func() bool { return len(records(nodes)) == 0 }, "nothing is left")
}

// records says which nodes have which keys.
func records(nodes []*fakeNode) (all []string) {
	for i, n := range nodes {
		n.look()
		for _, key := range n.Keys() {
			all = append(all, fmt.Sprintf("node %d: %s", i, key))
		}
	}
	return all
}
