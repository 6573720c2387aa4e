package main

import (
	"context"
	"crypto/rand"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/taketurn.lua
var takeTurnSource string

//go:embed lua/tellnext.lua
var tellNextSource string

//go:embed lua/takefenced.lua
var takeFencedSource string

//go:embed lua/tellfenced.lua
var tellFencedSource string

// told is the least that a lock does which hands over by a message: a script passes it on to the one call that
// waits, and publishes that to its process, which has one subscription. The PING before it has Redis send the
// message before the script's reply. No fence, no renewal, nobody looks who holds it, and a lost message is
// waited for without end. Other scripts add a fence, and look who holds it.
type told struct {
	rdb      *redis.Client
	sub      *redis.PubSub
	id       string // names its channel
	messages chan struct{}

	take, tell string // hashes of scripts
	lease      int64  // ms
}

func newTold(t target) (contestant, error) { return openTold(t, takeTurnSource, tellNextSource) }

func newFenced(t target) (contestant, error) { return openTold(t, takeFencedSource, tellFencedSource) }

func openTold(t target, take, tell string) (contestant, error) {
	ctx := context.Background()
	m := &told{rdb: t.client(), id: rand.Text(), messages: make(chan struct{}, 1), lease: t.lease.Milliseconds()}
	m.sub = m.rdb.Subscribe(ctx, m.id)
	_, err := m.sub.Receive(ctx)
	if err == nil {
		m.take, err = m.rdb.ScriptLoad(ctx, take).Result()
	}
	if err == nil {
		m.tell, err = m.rdb.ScriptLoad(ctx, tell).Result()
	}
	if err != nil {
		_ = m.Close()
		return nil, err
	}
	go m.receive()
	return m, nil
}

func (m *told) receive() {
	for {
		msg, err := m.sub.ReceiveTimeout(context.Background(), 0)
		if err != nil {
			return
		}
		if _, ok := msg.(*redis.Message); ok {
			m.messages <- struct{}{}
		}
	}
}

func (m *told) Close() error {
	_ = m.sub.Close()
	return m.rdb.Close()
}

func (m *told) Acquire(ctx context.Context, key string) (held, error) {
	h := &toldLock{m, []string{"told:" + key, "waits:" + key}}
	taken, err := m.rdb.EvalSha(context.Background(), m.take, h.keys, m.id, m.lease).Bool()
	if err != nil || taken {
		return h, err
	}
	select {
	case <-m.messages:
		return h, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type toldLock struct {
	*told
	keys []string
}

func (h *toldLock) Release(context.Context) error {
	ctx, pipe := context.Background(), h.rdb.Pipeline()
	pipe.Ping(ctx)
	pipe.EvalSha(ctx, h.tell, h.keys, h.id)
	_, err := pipe.Exec(ctx)
	return err
}
