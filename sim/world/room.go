//go:build faketime

package main

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/perkey-go/perkey/delayqueue"
)

// bounds checks that the queue has no more than it may, and refuses nothing for which it has room.
func (q *queueWorkload) bounds(m *message, err error) {
	full := errors.Is(err, delayqueue.ErrFull)
	if q.depth == 0 && q.bytes == 0 || err != nil && !full {
		return
	}
	all, ofKey, length := 0, 0, int64(0)
	for _, o := range q.ledger.all {
		if full && (o == m || !o.mayWait()) || !full && !q.ledger.waits(o) {
			continue
		}
		all++
		length += int64(len(o.payload))
		if o.key == m.key {
			ofKey++
		}
	}
	depth, perKey, most := cmp.Or(q.depth, 1000), cmp.Or(q.perKey, 1000), cmp.Or(q.bytes, 1<<40)
	if m.key == "" {
		perKey = depth
	}
	switch {
	case !full && (all > depth || ofKey > perKey || length > most):
		q.w.violation("-", "%s is stored: now there are %d, %d of its key, %d bytes; at most %d, %d, %d", m.id, all, ofKey, length, depth, perKey, most)
	case full && all < depth && ofKey < perKey && (all+2)*2000+int(length)*5/4 < int(most)/4 && q.w.quiet(time.Now().Add(-10*time.Second)):
		q.w.violation("-", "%s is refused, and there are %d, %d of its key, %d bytes: %v", m.id, all, ofKey, length, err)
	}
}

// soon is how long what is due may take to be started while nothing fails and a worker has room for it.
const soon = 3 * time.Second

// watch checks that what is due is started soon.
func (q *queueWorkload) watch() {
	busy := map[string]time.Time{} // when each key was last not free
	for ; !q.w.calm; time.Sleep(300 * time.Millisecond) {
		now := time.Now()
		room := now // since when a worker has had room
		for _, p := range q.w.processes {
			n := q.nodes[p]
			if n == nil {
				continue
			}
			if !n.works || p.dead || p.ending || p.stopped || n.runs >= n.slots {
				n.full = now
			}
			if n.full.Before(room) {
				room = n.full
			}
		}
		for _, key := range q.keys {
			if slices.ContainsFunc(slices.Clone(q.auditor.inside[key]), (*stay).alive) || busy[key].IsZero() || q.halts {
				busy[key] = now
			}
		}
		for _, m := range q.ledger.all {
			if m.starts > 0 && m.done == 0 && m.seen == "" && m.key != "" {
				busy[m.key] = now // it waits for its next attempt
			}
		}
		for _, m := range q.ledger.all {
			since := later(later(m.acked, m.called.Add(m.delay)), later(room, busy[m.key]))
			if now.Sub(since) > soon && m.starts == 0 && q.ledger.waits(m) {
				q.w.violation("-", "%s (%s, key %q) is due, could be run for %s, and is not", m.id, m.kind, m.key, now.Sub(since))
				return // once is enough
			}
		}
	}
}
