package redistest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Proxy stands between a client and a Redis and breaks what passes. It is safe
// for concurrent use.
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

// LoseRequest cuts the connection in place of each request for which lose says so.
// Nil stops that.
func (p *Proxy) LoseRequest(lose func(request []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseRequest = lose
}

// Blackhole swallows what goes in these directions, and cuts nothing: who waits
// for it is not told. Zero stops that for new connections; one that lost something
// stays silent in that direction until it is closed.
func (p *Proxy) Blackhole(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = d
}

// Delay holds back each piece of what passes, in either direction, for as long as
// delay says. Nil stops that.
func (p *Proxy) Delay(delay func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// DropReply keeps from the client what Redis sends when drop says so, and cuts
// nothing. Nil stops that.
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
	var mu sync.Mutex
	lost := false
	p.done.Go(func() {
		defer func() { _ = client.Close() }()
		buf := make([]byte, 64<<10)
		silent := false
		for {
			n, err := server.Read(buf)
			mu.Lock()
			drop := lost
			mu.Unlock()
			if err != nil || drop {
				return
			}
			p.mu.Lock()
			drop = p.dropReply != nil && p.dropReply(buf[:n])
			p.mu.Unlock()
			if silent = p.hold(Replies) || silent; silent || drop {
				continue
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	silent := false
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		cut := p.loseRequest != nil && p.loseRequest(buf[:n])
		lose := p.loseReply != nil && p.loseReply(buf[:n])
		p.mu.Unlock()
		if cut {
			return
		}
		if lose {
			mu.Lock()
			lost = true
			mu.Unlock()
		}
		if silent = p.hold(Requests) || silent; silent {
			continue
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// hold waits out the delay, and reports whether what goes in that direction is to
// be swallowed.
func (p *Proxy) hold(d Direction) (swallow bool) {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay != nil {
		time.Sleep(delay())
	}
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
