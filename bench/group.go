package main

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// group is raw with group commit: while a pipeline is in flight the commands of
// other callers are collected, and they are the next pipeline. It is what
// concurrent callers gain when they share round trips.
type group struct {
	*raw
	mu       sync.Mutex
	inFlight bool
	next     []*groupCall
}

// groupCall is a command that waits for a pipeline.
type groupCall struct {
	cmd redis.Cmder
	// Gets true when its caller is to send the next pipeline, this call in it, and
	// false when it was sent.
	send chan bool
}

func newGroup(t target) (lock, error) {
	r, err := openRaw(t, "group:")
	g := &group{raw: r}
	r.do = g.do
	return g, err
}

// do sends cmd with those of other callers, and returns when it has its reply.
func (g *group) do(cmd redis.Cmder) {
	g.mu.Lock()
	call := &groupCall{cmd: cmd}
	wait := g.inFlight
	if wait {
		call.send = make(chan bool, 1)
	}
	g.next = append(g.next, call)
	g.inFlight = true
	g.mu.Unlock()
	if wait && !<-call.send {
		return
	}

	g.mu.Lock()
	batch := g.next
	g.next = nil
	g.mu.Unlock()
	// The caller's ctx is one of many here: it ends nothing.
	pipe := g.Pipeline()
	for _, other := range batch {
		_ = pipe.Process(context.Background(), other.cmd)
	}
	_, _ = pipe.Exec(context.Background()) // each command has its own error

	g.mu.Lock()
	g.inFlight = len(g.next) > 0
	if g.inFlight {
		g.next[0].send <- true
	}
	g.mu.Unlock()
	for _, other := range batch {
		if other != call {
			other.send <- false
		}
	}
}
