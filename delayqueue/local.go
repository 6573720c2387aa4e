package delayqueue

import "time"

// Local is what a Worker knows of itself, without Redis.
type Local struct {
	// Queue is the queue's name.
	Queue string
	// Service is what WithService says of the queue, and Partitions what WithPartitions does; empty and 0 if they were not given.
	Service    string
	Partitions int
	// Slots is how many messages the Worker runs at once (WithConcurrency), and Running how many it has claimed and
	// not settled yet: those that wait for their keys included.
	Slots, Running int
	// LastClaim is when Redis last answered the Worker's question for messages, whether it had any: at most some 10 s ago,
	// unless Redis is away or the Worker is paused. It is zero if Redis never did.
	LastClaim time.Time
	// Paused: [Worker.Pause] was called. Stopped: the Worker was not started, or Stop was called.
	Paused, Stopped bool
}

// Local reports on the Worker. It does not ask Redis.
func (w *Worker) Local() Local {
	w.mu.Lock()
	stopped := !w.started || w.stopped
	w.mu.Unlock()
	l := Local{Queue: w.queue.name, Service: w.queue.service, Slots: w.concurrency, Running: w.claims.count(), Paused: w.paused.Load(), Stopped: stopped}
	if w.queue.splitGiven {
		l.Partitions = w.queue.split
	}
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
