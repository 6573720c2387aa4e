package redistest

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Proxy stands between a client and a Redis and breaks what passes. It is safe for concurrent use.
type Proxy struct {
	Addr string

	target string
	ln     net.Listener

	mu          sync.Mutex
	conns       map[net.Conn]struct{}
	loseReply   func(request []byte) bool
	loseRequest func(request []byte) bool
	dropReply   func(reply []byte) bool
	refuse      bool
	swallow     Direction
	delay       func() time.Duration
	accepted    atomic.Int64
	done        sync.WaitGroup
}

// Direction is a set of directions.
type Direction int

// The directions.
const (
	Requests Direction = 1 << iota
	Replies
)

// NewProxy starts a Proxy in front of target; it ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{Addr: ln.Addr().String(), target: target, ln: ln, conns: map[net.Conn]struct{}{}}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		p.Cut()
		p.done.Wait()
	})
	return p
}

// LoseReply lets each request reach Redis, and cuts the connection in place of
// the reply when lose says so. Nil stops that.
func (p *Proxy) LoseReply(lose func(request []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseReply = lose
}

// LoseRequest cuts the connection in place of each request for which lose says so. Nil stops that.
func (p *Proxy) LoseRequest(lose func(request []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseRequest = lose
}

// Blackhole swallows what goes in these directions, and cuts nothing: who waits for it is not told. Zero stops that
// for new connections; one that lost something stays silent in that direction until it is closed.
func (p *Proxy) Blackhole(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = d
}

// Delay has each piece of what passes, in either direction, arrive as much later as delay says, as a
// longer path would: later pieces are under way meanwhile, and keep their order. Nil stops that.
func (p *Proxy) Delay(delay func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// DropReply keeps from the client what Redis sends when drop says so, and cuts nothing. Nil stops that.
func (p *Proxy) DropReply(drop func(reply []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropReply = drop
}

// Refuse closes every connection, present and future, until Refuse(false).
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	p.refuse = refuse
	p.mu.Unlock()
	if refuse {
		p.Cut()
	}
}

// Cut closes every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Accepted is how many connections clients have made.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		p.done.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.forget(client)
	if !p.admit(client) {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.admit(server) {
		return
	}

	// Set when a request was let through whose reply is to be lost.
	var lost atomic.Bool
	p.done.Go(func() {
		defer func() { _ = client.Close() }()
		p.pass(server, client, Replies, func(reply []byte) (cut, drop bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return lost.Load(), p.dropReply != nil && p.dropReply(reply)
		})
	})
	p.pass(client, server, Requests, func(request []byte) (cut, drop bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.loseReply != nil && p.loseReply(request) {
			lost.Store(true)
		}
		return p.loseRequest != nil && p.loseRequest(request), false
	})
}

// piece is what passes at once.
type piece struct {
	bytes []byte
	due   time.Time
}

// pass passes on what comes from one connection to the other, until one of them ends or judge says
// that the connection is to be cut.
func (p *Proxy) pass(from, to net.Conn, d Direction, judge func([]byte) (cut, drop bool)) {
	pieces := make(chan piece, 1024)
	var forwarding sync.WaitGroup
	defer forwarding.Wait()
	defer close(pieces)
	forwarding.Go(func() {
		silent := false
		for x := range pieces {
			time.Sleep(time.Until(x.due))
			if silent = p.swallows(d) || silent; silent {
				continue
			}
			if _, err := to.Write(x.bytes); err != nil {
				_ = from.Close()
				silent = true
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		cut, drop := judge(buf[:n])
		if cut {
			return
		}
		if !drop {
			pieces <- piece{bytes.Clone(buf[:n]), p.due()}
		}
	}
}

// due is when what comes now is to be passed on.
func (p *Proxy) due() time.Time {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay == nil {
		return time.Time{}
	}
	return time.Now().Add(delay())
}

// swallows reports whether what goes in that direction is to be swallowed.
func (p *Proxy) swallows(d Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallow&d != 0
}

func (p *Proxy) admit(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
	return !p.refuse
}

func (p *Proxy) forget(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
