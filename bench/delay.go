package main

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"
)

// distance is a TCP proxy that is far from Redis: whatever passes it, either
// way, arrives late. Order is kept and nothing else waits: many requests can be on their way.
type distance struct {
	addr   string
	target string
	oneWay time.Duration
	ln     net.Listener

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	parts  sync.WaitGroup
	pump   chan parcel
	done   chan struct{} // the pump has ended
}

// parcel is bytes on their way. No bytes: the sender has closed.
type parcel struct {
	due   time.Duration
	to    net.Conn
	bytes []byte
}

func newDistance(target string, oneWay time.Duration) (*distance, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the delaying proxy: %w", err)
	}
	d := &distance{
		addr: ln.Addr().String(), target: target, oneWay: oneWay, ln: ln,
		conns: map[net.Conn]struct{}{}, pump: make(chan parcel, 1<<16), done: make(chan struct{}),
	}
	go d.deliver()
	d.parts.Go(d.accept)
	return d, nil
}

func (d *distance) close() {
	_ = d.ln.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.parts.Wait()
	close(d.pump)
	<-d.done
}

func (d *distance) accept() {
	for {
		client, err := d.ln.Accept()
		if err != nil {
			return
		}
		d.parts.Go(func() { d.join(client) })
	}
}

func (d *distance) join(client net.Conn) {
	if !d.admit(client) {
		return
	}
	server, err := net.Dial("tcp", d.target)
	if err != nil {
		d.drop(client)
		return
	}
	if !d.admit(server) {
		return
	}
	d.parts.Go(func() { d.carry(client, server) })
	d.carry(server, client)
}

func (d *distance) carry(from, to net.Conn) {
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		due := monotonic() + d.oneWay
		if n > 0 {
			d.pump <- parcel{due, to, buf[:n]}
		}
		if err != nil {
			d.drop(from)
			d.pump <- parcel{due: due, to: to}
			return
		}
	}
}

// deliver is the only one that sleeps. All parcels travel equally long, so that
// the oldest is the next.
func (d *distance) deliver() {
	runtime.LockOSThread()
	sharpTimers()
	defer close(d.done)
	for p := range d.pump {
		sleepUntil(p.due)
		if len(p.bytes) == 0 {
			d.drop(p.to)
			continue
		}
		_, _ = p.to.Write(p.bytes)
	}
}

func (d *distance) admit(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = c.Close()
		return false
	}
	d.conns[c] = struct{}{}
	return true
}

func (d *distance) drop(c net.Conn) {
	_ = c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}
