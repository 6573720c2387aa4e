package delayqueue

import (
	"context"
	"time"
)

// Pause keeps all workers from starting messages of the queue for d, or until [Queue.Resume]. Once
// it has returned nil, no process claims a message. Messages that are claimed already run to their
// end, also those that a worker has claimed ahead; messages that are enqueued wait. To pause again
// sets the time anew, whether that is later or earlier.
//
// A pause always ends: after d, or some seconds later if a worker was not told. Queued messages
// grow old meanwhile, and would all expire in a queue whose pause was forgotten. d is 1 s to 366
// days; anything else is [ErrInvalidArgument]. After another error some partitions may be paused
// and others not: pause again, or resume. [Queue.Stats] tells. It takes three round trips.
func (q *Queue) Pause(ctx context.Context, d time.Duration) error {
	if d < time.Second || d > maxDuration {
		return invalidArgument("pause", "%s: want %s to %s", d, time.Second, maxDuration)
	}
	if err := q.pause(ctx, "pause", d); err != nil {
		return err
	}
	q.wakeAll(ctx) // they may sleep for the length of an earlier pause
	return nil
}

// Resume ends a [Queue.Pause], and wakes the workers. It does nothing to a queue that is not
// paused. After an error some partitions may still be paused: resume again. It takes three round
// trips.
func (q *Queue) Resume(ctx context.Context) error {
	if err := q.pause(ctx, "resume", 0); err != nil {
		return err
	}
	q.wakeAll(ctx)
	return nil
}

// wakeAll wakes the workers for all partitions. A worker that misses the message claims within 10 s
// anyway.
func (q *Queue) wakeAll(ctx context.Context) {
	_ = q.rdb.Publish(ctx, wakeChannel(&q.settings), "").Err()
}

// pause pauses all partitions for d; zero resumes them.
func (q *Queue) pause(ctx context.Context, op string, d time.Duration) error {
	m, err := q.manifests.reread(ctx, op)
	if err != nil {
		return err
	}
	return q.store.Pause(ctx, op, m.partitions, d)
}
