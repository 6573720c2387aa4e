package core

// Refreshes: a wait queue tells Redis from time to time that its token still waits. Those of many queues
// are sent in one command.

import (
	"context"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// refreshWindow is for how long refreshes are collected before they are sent together.
const refreshWindow = 5 * time.Millisecond

// refresh has a queue's token refreshed, in the background. Called with mu held.
func (w *waiters) refresh(q *queue, token string) {
	record := w.record(q)
	node := w.locker.store.NodeOf(record)
	batch, sending := w.refreshes[node]
	w.refreshes[node] = append(batch, store.Refresh{Record: record, Token: token})
	if !sending {
		w.locker.life.Background(func() { w.sendRefreshes(node) })
	}
}

// sendRefreshes sends the refreshes for one node, one batch after another, until there are none.
func (w *waiters) sendRefreshes(node any) {
	for {
		time.Sleep(refreshWindow)
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
		w.refreshed(sent, batch, w.locker.store.Refresh(context.Background(), batch))
	}
}

// refreshed takes the replies to a batch of refreshes.
func (w *waiters) refreshed(sent time.Time, batch []store.Refresh, replies []store.RefreshReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, reply := range replies {
		token := batch[i].Token
		q := w.queues[queueKey{store.KeyOf(w.locker.prefix, batch[i].Record), store.LimitOf(token)}]
		if q == nil {
			continue
		}
		var f waitqueue.Failure
		if reply.Err != nil {
			f = waitqueue.Failure{Err: store.Unavailable("acquire", q.key, reply.Err), Unsent: store.SaysNothing(reply.Err)}
		}
		w.apply(q, nil, q.Refreshed(time.Now(), refusal(token, sent, store.NotQueued, reply.Standing), f))
	}
}
