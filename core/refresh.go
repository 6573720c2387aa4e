package core

import (
	"context"
	"time"

	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// refreshGather is how long a refresh waits for others, to go with them.
const refreshGather = 5 * time.Millisecond

// refresh tells Redis that the token of a wait queue still waits, and asks for its place. It costs
// Redis a fraction of a question, and many go into one command.
type refresh struct {
	queueKey
	record, entry string
}

type refreshReply struct {
	server    int64         // the server's clock in ms
	remaining time.Duration // at least, of a holder's lease
	place     int           // in the queue, from 1; 0: the queue has to ask
	queued    int           // length of the queue
	err       error
}

// refresh has a queue's token refreshed, in the background. Called with mu held.
func (w *waiters) refresh(q *queue, token string) {
	record := w.record(q)
	node := w.locker.store.nodeOf(record)
	batch, sending := w.refreshes[node]
	w.refreshes[node] = append(batch, refresh{queueKey{q.key, q.Limit}, record, token})
	if !sending {
		w.locker.background(func() { w.sendRefreshes(node) })
	}
}

// sendRefreshes sends the refreshes for one node, one batch after another, until there are none.
func (w *waiters) sendRefreshes(node any) {
	for {
		time.Sleep(refreshGather)
		w.mu.Lock()
		batch := w.refreshes[node]
		w.refreshes[node] = nil
		if len(batch) == 0 {
			delete(w.refreshes, node) // nodes come and go
		}
		w.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		sent := time.Now()
		w.refreshed(sent, batch, w.locker.store.refresh(context.Background(), batch))
	}
}

// refreshed takes the replies to a batch of refreshes.
func (w *waiters) refreshed(sent time.Time, batch []refresh, replies []refreshReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, reply := range replies {
		q := w.queues[batch[i].queueKey]
		if q == nil {
			continue
		}
		var f waitqueue.Failure
		if reply.err != nil {
			f = waitqueue.Failure{Err: unavailable("acquire", q.key, reply.err), Unsent: saysNothing(reply.err)}
		}
		w.run(q, nil, q.Refreshed(time.Now(), &waitqueue.Refusal{
			Token: batch[i].entry, Sent: sent, Remaining: reply.remaining, Server: reply.server, Place: reply.place, Length: reply.queued,
		}, f))
	}
}
