//go:build faketime

package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"time"
)

// network joins the processes with Redis. One goroutine runs at a time and none is preempted: nothing here needs a lock.
type network struct {
	w     *world
	r     chance
	ends  []*end // the clients'
	serve func(net.Conn)
	down  bool          // nobody can connect
	slow  time.Duration // how much longer all takes
}

// end is one end of a connection. What is written arrives later, in order.
type end struct {
	n       *network
	process *process // whose it is; nil: Redis's
	peer    *end     // nil: what is written vanishes
	in      []byte
	eof     bool
	wake    chan struct{}
	until   time.Time // the read deadline
	arrives time.Time // the latest of what was written to it
	pushes  bool      // it subscribed
}

func (n *network) dial(p *process) (net.Conn, error) {
	if n.down || p.dead {
		n.w.disturb(0)
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	client, server := &end{n: n, process: p, wake: make(chan struct{}, 1)}, &end{n: n, wake: make(chan struct{}, 1)}
	client.peer, server.peer = server, client
	n.ends = append(n.ends, client)
	as(0, func() { n.serve(server) })
	return client, nil
}

// open are the clients' ends that are not closed.
func (n *network) open() (open []*end) {
	for _, e := range n.ends {
		if !e.eof {
			open = append(open, e)
		}
	}
	n.ends = open
	return open
}

func (e *end) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// cut ends a connection for both.
func (e *end) cut() {
	e.eof = true
	e.signal()
	if p := e.peer; p != nil {
		p.eof, p.peer = true, nil
		p.signal()
	}
	e.peer = nil
}

// part leaves a connection half open: both may write, and nothing arrives.
func (e *end) part() {
	if e.peer != nil {
		e.peer.peer, e.peer = nil, nil
	}
}

func (e *end) Read(b []byte) (int, error) {
	for {
		if len(e.in) > 0 {
			n := copy(b, e.in)
			e.in = e.in[n:]
			return n, nil
		}
		if e.eof {
			e.fails()
			return 0, io.EOF
		}
		var late <-chan time.Time
		if !e.until.IsZero() {
			left := time.Until(e.until)
			if left <= 0 {
				e.fails()
				return 0, os.ErrDeadlineExceeded
			}
			late = time.After(left)
		}
		select {
		case <-e.wake:
		case <-late:
		}
	}
}

func (e *end) Write(b []byte) (int, error) {
	if e.eof {
		e.fails()
		return 0, io.ErrClosedPipe
	}
	if e.process != nil && bytes.Contains(b, []byte("subscribe")) {
		e.pushes = true
	}
	to := e.peer
	if to == nil {
		return len(b), nil
	}
	delay, cutBefore, cutAfter := e.n.r.between(0, 2*time.Millisecond)+e.n.slow, false, false
	switch {
	case !e.n.w.faulty():
	case e.n.w.on("lost") && e.n.r.one(250):
		cutBefore, cutAfter = e.n.r.one(2), true // lost on its way, or the reply will be
	case e.n.w.on("late") && e.n.r.one(150):
		delay += e.n.r.between(0, time.Second)
		e.n.w.happens("late", "")
	case e.n.w.on("deaf") && to.pushes && bytes.Contains(b[:min(len(b), 20)], []byte("message")) && e.n.r.one(6):
		e.n.w.happens("deaf", to.process.name)
		return len(b), nil // a message of Redis's that nobody gets
	}
	if cutBefore {
		e.n.w.happens("lost", "")
		e.cut()
		return len(b), nil
	}
	// Timers of one instant run in any order, and a stream keeps its own.
	now := time.Now()
	began := e.n.w.began // times keep their monotonic reading: Redis's wall clock may be set
	at := later(now, began.Add((now.Sub(began) + delay).Truncate(e.n.r.step)))
	if !at.After(to.arrives) {
		at = to.arrives.Add(1)
	}
	to.arrives = at
	text := append([]byte(nil), b...)
	as(0, func() {
		time.AfterFunc(at.Sub(now), func() {
			if e.peer != to {
				return
			}
			to.in = append(to.in, text...)
			to.signal()
			if cutAfter {
				e.n.w.happens("lost", "")
				e.cut()
			}
		})
	})
	return len(b), nil
}

// fails records that a process learns that it did not reach Redis. What subscribes has time-outs of its own.
func (e *end) fails() {
	if e.process != nil && !e.pushes {
		e.n.w.disturb(0)
	}
}

func (e *end) Close() error {
	if !e.eof {
		e.cut()
	}
	return nil
}

func (e *end) SetDeadline(t time.Time) error     { return e.SetReadDeadline(t) }
func (e *end) SetReadDeadline(t time.Time) error { e.until = t; e.signal(); return nil }
func (e *end) SetWriteDeadline(time.Time) error  { return nil }
func (e *end) LocalAddr() net.Addr               { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1} }

func (e *end) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 6379} }
