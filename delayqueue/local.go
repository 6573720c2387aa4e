package delayqueue

import "time"

// Local is what a [Worker] knows of itself, without asking Redis.
type Local struct {
	// Queue is the queue's name.
	Queue string
	// Service and Partitions are those of [WithService] and [WithPartitions]; empty and 0 if they were not given.
	Service    string
	Partitions int
	// Slots is how many messages the Worker runs at once ([WithConcurrency]). Running is how many it has claimed and
	// not settled yet, including those that wait for their keys or were claimed ahead.
	Slots, Running int
	// LastClaim is when Redis last replied to the Worker's claim for messages, with or without a message: at most some 10 s ago,
	// unless Redis is away or the Worker is paused. It is zero if there was no reply yet.
	LastClaim time.Time
	// Paused: [Worker.Pause] was called. Stopped: the Worker was not started, or [Worker.Stop] was called.
	Paused, Stopped bool
}

// Local reports on the Worker. It does not ask Redis.
func (w *Worker) Local() Local {
	w.mu.Lock()
	stopped := !w.started || w.stopped
	w.mu.Unlock()
	l := Local{Queue: w.queue.name, Service: w.queue.service, Partitions: w.queue.split, Slots: w.concurrency, Running: w.claims.count(), Paused: w.paused.Load(), Stopped: stopped}
	if at := w.claimed.Load(); at != 0 {
		l.LastClaim = time.Unix(0, at)
	}
	return l
}

func (s *claims) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}
