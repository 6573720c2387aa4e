package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// queue is a delay queue to be measured. It is safe for concurrent use.
type queue interface {
	Enqueue(ctx context.Context, m message) error
	// Work gives messages to handle, as many at once as there are queueHands,
	// until stop, which waits for them.
	Work(handle func(number int)) (stop func() error, err error)
	// Keys is the pattern of all that the queue has in Redis.
	Keys() string
	Close() error
}

// message is small, and nothing but numbered.
type message struct {
	number int
	key    string // its lock; of our own queue only
	delay  time.Duration
}

const (
	queueHands  = 16 // producers, and handlers
	messageSize = 64
	claimLease  = 30 * time.Second // asynq's, which cannot be set
)

func (m message) payload() []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, messageSize), uint64(m.number))[:messageSize]
}

func numberOf(payload []byte) int { return int(binary.BigEndian.Uint64(payload)) }

// queueEntrant is a queue that is not open yet.
type queueEntrant struct {
	name string
	open func(t target, name string) (queue, error) // t.lease is a claim's
}

var queueEntrants = []queueEntrant{
	{"raw", newRawQueue},
	{"asynq", newAsynq(0)},
	{"asynq-100ms", newAsynq(100 * time.Millisecond)},
	{"perkey", newPerkeyQueue},
}

func enterQueue(name string) queueEntrant {
	at := slices.IndexFunc(queueEntrants, func(e queueEntrant) bool { return e.name == name })
	if at < 0 {
		panic("bench: no queue is named " + name)
	}
	return queueEntrants[at]
}

// openQueue opens the queue of that name, empty.
func (b *bench) openQueue(entrant string) (*openQueue, error) {
	q, err := enterQueue(entrant).open(target{addr: b.server.addr, lease: claimLease}, "bench-"+entrant)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", entrant, err)
	}
	o := &openQueue{q, entrant, b}
	if err := o.clear(); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return o, nil
}

type openQueue struct {
	queue
	name  string
	bench *bench
}

func (o *openQueue) clear() error { return o.bench.server.clear(o.bench.ctx, o.Keys()) }

// leave closes the queue and leaves nothing of it.
func (o *openQueue) leave() { _ = errors.Join(o.clear(), o.Close()) }

// queues are the open queues of one scenario.
type queues []*openQueue

func (b *bench) openQueues(names ...string) (queues, error) {
	var all queues
	for _, name := range names {
		o, err := b.openQueue(name)
		if err != nil {
			return all, err
		}
		all = append(all, o)
	}
	return all, nil
}

func (all queues) leave() {
	for _, o := range all {
		o.leave()
	}
}

// fill enqueues n messages. Those of a line are enqueued in their order: see lineOf.
func fill(ctx context.Context, q queue, n int, keyed bool) error {
	var wg sync.WaitGroup
	errs := make([]error, queueHands)
	for w := range queueHands {
		wg.Go(func() {
			for i := range n {
				line := lineOf(i)
				if line%queueHands != w {
					continue
				}
				m := message{number: i}
				if keyed {
					m.key = fmt.Sprintf("line:%d", line)
				}
				if errs[w] = q.Enqueue(ctx, m); errs[w] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// lines is how many keys there are.
const lines = 1000

func lineOf(number int) int { return number % lines }
