package delayqueue

import "log/slog"

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
			return
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
			woken, err := p.nudge(w.ctx, some)
			if err != nil {
				w.log.Debug("delayqueue: nudge failed", slog.Any("error", err))
				continue
			}
			if woken > 0 {
				w.look(p.base)
			}
		}
	}
}
