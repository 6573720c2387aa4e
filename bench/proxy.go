package main

import (
	"net"
	"runtime"
	"sync"
	"time"
)

// chunk is bytes on their way. No bytes: the sender has closed.
type chunk struct {
	due   time.Duration
	to    net.Conn
	bytes []byte
}

// farFrom is the address of a TCP proxy that is far from target until the scenario ends: whatever passes it, either way,
// arrives that late. Order is kept and nothing else waits: many requests can be on their way.
func (b *bench) farFrom(target string, oneWay time.Duration) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	chunks := make(chan chunk, 1<<16)
	go deliver(chunks)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			conns.Go(func() { carry(client, server, oneWay, chunks) })
			conns.Go(func() { carry(server, client, oneWay, chunks) })
		}
	})
	b.cleanup(func() { // after the clients' processes have ended
		_ = ln.Close()
		conns.Wait()
		close(chunks)
	})
	return ln.Addr().String()
}

// carry takes what from sends until it ends.
func carry(from, to net.Conn, oneWay time.Duration, chunks chan<- chunk) {
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		due := monotonic() + oneWay
		if n > 0 {
			chunks <- chunk{due, to, buf[:n]}
		}
		if err != nil {
			_ = from.Close()
			chunks <- chunk{due: due, to: to}
			return
		}
	}
}

// deliver is the only one that sleeps. All chunks travel equally long, so that
// the oldest is the next.
func deliver(chunks <-chan chunk) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for c := range chunks {
		sleepUntil(c.due)
		if len(c.bytes) == 0 {
			_ = c.to.Close()
			continue
		}
		_, _ = c.to.Write(c.bytes)
	}
}
