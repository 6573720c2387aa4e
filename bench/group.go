package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// group is raw with group commit: while a pipeline is in flight the commands of
// other callers are collected, and they are the next pipeline. It is what
// concurrent callers gain when they share round trips.
type group struct {
	rdb   *redis.Client
	lease time.Duration
	sha   string

	mu       sync.Mutex
	inFlight bool
	next     []*passenger
}

// passenger is a command that waits for a pipeline.
type passenger struct {
	cmd redis.Cmder
	// Gets true when the command is to send the next pipeline, itself in it, and
	// false when it was sent.
	turn chan bool
}

func newGroup(t target) (contestant, error) {
	g := &group{rdb: t.client(), lease: t.lease}
	var err error
	if g.sha, err = g.rdb.ScriptLoad(context.Background(), releaseSource).Result(); err != nil {
		_ = g.rdb.Close()
		return nil, err
	}
	return g, nil
}

func (g *group) Close() error { return g.rdb.Close() }

func (g *group) Acquire(ctx context.Context, key string) (held, error) {
	h := &groupLock{group: g, key: "group:" + key, token: rand.Text()}
	for {
		set := redis.NewBoolCmd(ctx, "set", h.key, h.token, "px", g.lease.Milliseconds(), "nx")
		g.do(set)
		if err := set.Err(); err != nil {
			return nil, err
		}
		if set.Val() {
			return h, nil
		}
		if err := pause(ctx, pollEvery); err != nil {
			return nil, err
		}
	}
}

type groupLock struct {
	*group
	key, token string
}

func (h *groupLock) Release(ctx context.Context) error {
	del := redis.NewCmd(ctx, "evalsha", h.sha, 1, h.key, h.token)
	h.do(del)
	n, err := del.Int()
	if err == nil && n == 0 {
		err = fmt.Errorf("group: %q was lost", h.key)
	}
	return err
}

// do sends cmd with those of other callers, and returns when it has its reply.
func (g *group) do(cmd redis.Cmder) {
	g.mu.Lock()
	p := &passenger{cmd: cmd}
	if g.inFlight {
		p.turn = make(chan bool, 1)
	}
	g.next = append(g.next, p)
	wait := g.inFlight
	g.inFlight = true
	g.mu.Unlock()
	if wait && !<-p.turn {
		return
	}

	g.mu.Lock()
	load := g.next
	g.next = nil
	g.mu.Unlock()
	// The caller's ctx is one of many here: it ends nothing.
	pipe := g.rdb.Pipeline()
	for _, other := range load {
		_ = pipe.Process(context.Background(), other.cmd)
	}
	_, _ = pipe.Exec(context.Background()) // each command has its own error

	g.mu.Lock()
	g.inFlight = len(g.next) > 0
	if g.inFlight {
		g.next[0].turn <- true
	}
	g.mu.Unlock()
	for _, other := range load {
		if other != p {
			other.turn <- false
		}
	}
}
