package delayqueue

import (
	"context"
	"log/slog"
)

const nudgeBatch = 64

// passOn tells the queue of keys that were announced to be free, until all
// handlers have returned: the head of such a key runs within a round trip of the
// release, and not only when its delay is over. An announcement that comes
// before its message is back in the queue is not lost: nudge.lua marks it.
func (w *Worker) passOn(drained <-chan struct{}) {
	for {
		var keys []string
		select {
		case key := <-w.released:
			keys = append(keys, key)
		case <-drained:
			if len(w.released) == 0 {
				return
			}
		}
	more:
		for len(keys) < nudgeBatch {
			select {
			case key := <-w.released:
				keys = append(keys, key)
			default:
				break more
			}
		}
		for p, some := range w.queue.byPartition(keys) {
			found, err := p.nudge(context.Background(), some)
			if err != nil {
				w.log.Debug("delayqueue: nudge failed", slog.Any("error", err))
				continue
			}
			for i, key := range some {
				switch found[i] {
				case nudgeWoken:
					w.look(p.base)
				case nudgeEmpty:
					w.unreserve(key)
				}
			}
		}
	}
}

// reconsider looks whether a key has messages, and wakes their head, or ends the key's
// reservation. It does not wait.
func (w *Worker) reconsider(key string) {
	select {
	case w.released <- key:
	default: // the reservation ends by itself
	}
}

// unreserve ends the reservation of a key that has no messages: they were cancelled, or
// have expired. One that is parked meanwhile makes the reservation anew.
func (w *Worker) unreserve(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), commandPatience)
	defer cancel()
	info, err := w.locker.Inspect(ctx, key)
	if err != nil || info.Reserved == 0 {
		return
	}
	if left, err := w.queue.hasMessages(ctx, key); err == nil && !left {
		_ = w.locker.Unreserve(ctx, key, info.ReservationStamp)
	}
}
