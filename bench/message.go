package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/taketurn.lua
	takeTurnSource string
	//go:embed lua/tellnext.lua
	tellNextSource string
	//go:embed lua/takefenced.lua
	takeFencedSource string
	//go:embed lua/tellfenced.lua
	tellFencedSource string
)

// message is the least that a lock does which hands over by a message: a script hands it over to the one call that
// waits, and publishes that to its process, which has one subscription. The PING before it has Redis send the
// message before the script's reply. No fence, no renewal, no check of who holds it, and a call waits for a lost
// message without end. Other scripts add a fence, and check who holds it.
type message struct {
	*redis.Client
	sub      *redis.PubSub
	id       string // names its channel
	messages chan struct{}

	take, tell *redis.Script
	lease      int64 // ms
}

func newMessage(t target) (lock, error) { return openMessage(t, takeTurnSource, tellNextSource) }

func newMessageFence(t target) (lock, error) {
	return openMessage(t, takeFencedSource, tellFencedSource)
}

func openMessage(t target, take, tell string) (lock, error) {
	ctx := context.Background()
	m := &message{
		Client: t.client(), id: rand.Text(), messages: make(chan struct{}, 1),
		take: redis.NewScript(take), tell: redis.NewScript(tell), lease: t.lease.Milliseconds(),
	}
	m.sub = m.Subscribe(ctx, m.id)
	_, err := m.sub.Receive(ctx)
	go m.receive()
	return m, errors.Join(err, m.take.Load(ctx, m.Client).Err(), m.tell.Load(ctx, m.Client).Err())
}

func (m *message) receive() {
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

func (m *message) Close() error {
	_ = m.sub.Close()
	return m.Client.Close()
}

func (m *message) Acquire(ctx context.Context, key string) (lease, error) {
	h := &messageLease{m, []string{"told:" + key, "waits:" + key}}
	taken, err := m.take.EvalSha(context.Background(), m.Client, h.keys, m.id, m.lease).Bool()
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

type messageLease struct {
	*message
	keys []string
}

func (h *messageLease) Release(context.Context) error {
	ctx, pipe := context.Background(), h.Pipeline()
	pipe.Ping(ctx)
	h.tell.EvalSha(ctx, pipe, h.keys, h.id)
	_, err := pipe.Exec(ctx)
	return err
}
