package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// queue is a delay queue that is measured. It is safe for concurrent use.
type queue interface {
	Enqueue(ctx context.Context, m queued) error
	// Work gives messages to handle, as many at once as there are queueWorkers,
	// until stop, which waits for them.
	Work(handle func(number int)) (stop func() error, err error)
	// Keys is the pattern of all that the queue has in Redis.
	Keys() string
	Close() error
}

// queued is a message, which is small, and nothing but numbered.
type queued struct {
	number int
	key    string // its lock; of perkey alone
	delay  time.Duration
}

const (
	queueWorkers = 16 // producers, and handlers
	messageSize  = 64
	claimLease   = 30 * time.Second // asynq's, which cannot be set
	keyCount     = 1000
)

func (m queued) payload() []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, messageSize), uint64(m.number))[:messageSize]
}

func numberOf(payload []byte) int { return int(binary.BigEndian.Uint64(payload)) }

// queues by the names of their rows. A target's lease is a claim's.
var queues = map[string]func(t target, name string) (queue, error){
	"raw":         newRawQueue,
	"asynq":       newAsynq(0),
	"asynq-100ms": newAsynq(100 * time.Millisecond),
	"perkey":      newPerkeyQueue,
}

func openQueue(implementation string, t target, name string) (queue, error) {
	open, ok := queues[implementation]
	if !ok {
		return nil, fmt.Errorf("no queue is named %q", implementation)
	}
	return open(t, name)
}

// openQueue opens an empty queue, of which nothing is left when the scenario ends.
func (b *bench) openQueue(implementation, name string, lease time.Duration) queue {
	q := must(openQueue(implementation, target{addr: b.server.addr, lease: lease}, name))
	b.cleanup(func() { _ = q.Close() })
	b.cleanup(func() { _ = b.server.clear(context.WithoutCancel(b.ctx), q.Keys()) })
	check(b.server.clear(b.ctx, q.Keys()))
	return q
}

// enqueue is 16 producers that enqueue one small job after the other, which
// nobody works on.
func enqueue(b *bench) {
	var entries []entry
	for _, name := range []string{"raw", "asynq", "perkey"} {
		q := b.openQueue(name, "bench-"+name, claimLease)
		entries = append(entries, entry{name, func(ctx context.Context, worker int) error {
			return q.Enqueue(ctx, queued{number: worker})
		}})
	}
	all := b.measure(entries, sizes{queueWorkers, scale(b, 10, 2), scale(b, 100, 50)})
	all.printOps("queue, 16 producers enqueue", "raw")
	b.asynqBar("queue, enqueued/s × asynq", all, 1.3)
}

// asynqBar is on perkey's rate, in times of asynq's.
func (b *bench) asynqBar(what string, all results, want float64) {
	perkey, asynq := all.find("perkey"), all.find("asynq")
	b.atLeast(what, perkey.ratio(asynq, perSecond), want, rates(perkey, asynq))
}
