package delayqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// wakeReleased wakes the messages of keys that may be free, until all handlers have returned:
// release message → dispatch to the key's partition → its next claim makes the head due, and takes it. So the head runs
// within a round trip of the release, and not only when its delay is over. A release that is
// announced before the message is back in the queue is not lost: look.lua marks it.
//
// A partition that does not answer does not hold up the keys of others, and the ends of
// reservations do not hold up messages.
func (w *Worker) wakeReleased(ctx context.Context, cancel func(), wakers *sync.WaitGroup, drained <-chan struct{}) {
	var helpers sync.WaitGroup
	helpers.Go(func() { w.boundDrain(ctx, cancel, drained) })
	helpers.Go(func() {
		for key := range w.waker.toUnreserve {
			w.waker.unreserve(ctx, key)
		}
		cancel()
	})
	w.dispatch(drained)
	wakers.Wait()
	close(w.waker.toUnreserve)
	helpers.Wait()
}

// boundDrain gives the rest some time when handlers have returned and the time of Stop is over.
func (w *Worker) boundDrain(ctx context.Context, cancel func(), drained <-chan struct{}) {
	<-drained
	select {
	case <-w.ctx.Done():
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		cancel()
	case <-ctx.Done():
	}
}

// dispatch sends the keys to the goroutines that wake them in their partitions.
func (w *Worker) dispatch(drained <-chan struct{}) {
	defer func() {
		for _, c := range *w.fetchers.Load() {
			close(c.freed)
		}
	}()
	pass := func(key string) {
		m := w.queue.manifests.known.Load()
		if m == nil {
			return
		}
		select {
		case w.fetcherOf(m.of(key, "")).freed <- key:
		default: // its message waits for its time
		}
	}
	for {
		select {
		case key := <-w.waker.released:
			pass(key)
			continue
		case <-drained:
		}
		for len(w.waker.released) > 0 {
			pass(<-w.waker.released)
		}
		return
	}
}

// wakeFreed makes the heads of a partition's freed keys due when nothing is claimed there any more: before, claims do.
func (w *fetcher) wakeFreed(ctx context.Context) {
	for {
		if len(w.pending) == 0 {
			key, open := <-w.freed
			if !open {
				return
			}
			w.pending = append(w.pending, key)
		}
		w.takeFreed()
		found, err := w.partition.Wake(ctx, w.pending, true)
		if err != nil {
			w.log.Debug("delayqueue: wake failed", slog.Any("error", err))
		}
		w.looked(found)
	}
}

// takeFreed takes the freed keys that have come.
func (w *fetcher) takeFreed() {
	for len(w.freed) > 0 && len(w.pending) < store.BatchItems {
		w.pending = append(w.pending, <-w.freed)
	}
}

// looked passes on those of the pending keys that have no messages that could run now, to end their reservations.
func (w *fetcher) looked(found []store.Woken) {
	for i, what := range found {
		if what == store.WakeNone || what == store.WakeHalt {
			select {
			case w.waker.toUnreserve <- w.pending[i]:
			default: // the reservation ends by itself
			}
		}
	}
	w.pending = w.pending[:0]
}

// waker has the keys that may be free.
type waker struct {
	released    chan string // wake their messages
	toUnreserve chan string // those among them without messages that could run now: end their reservations
	queue       *Queue
	locker      *core.Locker
}

// reconsider checks whether a key has messages, and wakes their head, or ends the key's
// reservation. It does not wait.
func (w *waker) reconsider(key string) {
	select {
	case w.released <- key:
	default: // the reservation ends by itself, and a message is tried when it is due
	}
}

// unreserve ends the reservation of a key without messages that could run now: they were cancelled,
// have expired, or wait for their time. A message that is parked meanwhile makes the reservation
// anew.
func (w *waker) unreserve(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(ctx, store.CommandTimeout)
	defer cancel()
	stamp, err := reservations.Stamp(ctx, w.locker, key)
	if err != nil || stamp == 0 {
		return
	}
	if left, err := w.queue.wake(ctx, key, false); err != nil || left {
		return
	}
	if reservations.Unreserve(ctx, w.locker, key, stamp) != nil {
		return
	}
	// A message that was enqueued meanwhile and found the key held has only lengthened the reservation.
	if left, err := w.queue.wake(ctx, key, false); (err != nil || left) && w.queue.reservationWindow > 0 {
		_, _ = reservations.Reserve(ctx, w.locker, key, w.queue.reservationWindow)
	}
}
