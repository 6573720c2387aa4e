package core

import (
	"context"
	"time"
)

const (
	// Refreshes are sent at times that lie so far apart, so that many go together.
	refreshGrid = 250 * time.Millisecond
	// How long a refresh waits for the others that are due.
	refreshGather = 5 * time.Millisecond
)

// refresh tells Redis that the entry of a line still waits, and asks what has become of it. It
// costs a fraction of a question, and many go into one command.
type refresh struct {
	lineKey
	record, entry string
}

type refreshReply struct {
	server    int64         // the server's clock in ms
	remaining time.Duration // at least, of a holder's lease
	place     int           // in the queue, from 1; 0: the line has to ask
	queued    int           // length of the queue
	err       error
}

// attend returns when a line has something to do: when it asks, or refreshes its entry before
// that. If a refresh is due it is sent in the background. Called with mu held.
func (w *waiters) attend(ln *line, now time.Time) time.Time {
	switch {
	case ln.refreshAt.IsZero() || ln.askAt.Before(ln.refreshAt):
		return ln.askAt
	case ln.refreshAt.After(now):
		return ln.refreshAt
	case ln.entry == "" || !w.locker.store.listening():
		return now
	}
	ln.refreshAt = time.Time{}
	record := recordName(w.locker.prefix, ln.key)
	node := w.locker.store.nodeOf(record)
	batch, sending := w.refreshes[node]
	w.refreshes[node] = append(batch, refresh{ln.lineKey, record, ln.entry})
	if !sending {
		w.locker.background(func() { w.sendRefreshes(node) })
	}
	return ln.askAt
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

// refreshed records what Redis said of the entries in a batch. A line whose entry it does not
// know, or whose key can be had, asks at once; one that had no answer asks soon.
func (w *waiters) refreshed(sent time.Time, batch []refresh, replies []refreshReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, reply := range replies {
		ln := w.lines[batch[i].lineKey]
		if ln == nil || ln.first == nil || ln.entry != batch[i].entry || ln.asking || ln.sent.After(sent) {
			continue
		}
		switch {
		case reply.err != nil && !saysNothing(reply.err):
			ln.unanswered(unavailable("acquire", ln.key, reply.err))
		case reply.err != nil || reply.place == 0:
			ln.askAt = time.Time{}
		default:
			still := ln.still + 1
			if reply.place != ln.place {
				still = 0
			}
			ln.noted(sent, reply.server, reply.place, reply.queued, reply.remaining)
			ln.still = still
			ln.poll(w.locker, w.locker.store.mark())
		}
		ln.first.poke()
	}
}
