package delayqueue

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/dedicated"
	"github.com/perkey-go/perkey/internal/trust"
)

// claim is a message that this Worker has claimed and not settled yet.
type claim struct {
	message   Message // as its handler gets it
	stored    *store.Message
	queue     *Queue
	partition *store.Partition
	token     string
	// ctx ends with ErrClaimLost when the claim is lost, and with the Worker's.
	ctx         context.Context
	cancel      context.CancelCauseFunc
	taken       time.Time
	since       time.Time // a slot has been at the partition
	runs        bool      // it has a place in Worker.slots.running
	mayBePoison bool      // a worker was lost with it: it counts in Worker.slots.poison
	alone       bool      // it is in Worker.slots.alone
	whilePaused bool      // Pause came before the reply that brought it
	granted     time.Time // its key was, to this claim; zero: it had not to wait for it
	// startBy is no later than the message's not_after, by this process's clock; zero: any time.
	startBy time.Time

	// Guarded by claims.mu.
	deadline time.Time // until then nobody else can claim the message
	expiry   *time.Timer
	settling bool
}

// claims are a Worker's claims: extend them in time, and end the ctx of one that is lost. One
// goroutine for each partition extends all of its claims; each claim has a timer, which needs no
// goroutine, so that a slow Redis cannot keep its ctx from ending.
type claims struct {
	lease time.Duration
	rdb   redis.UniversalClient // the queue's
	given redis.UniversalClient // the user's client of heartbeats, or nil
	beats *dedicated.Client     // the client of heartbeats
	log   *slog.Logger

	mu   sync.Mutex
	held map[*claim]struct{}
}

func (s *claims) add(parent context.Context, q *Queue, p *store.Partition, m *store.Message, token string, deadline time.Time) *claim {
	now := time.Now()
	message := messageOf(m)
	m.Payload = nil // the handler's is opened, and this one perhaps sealed
	c := &claim{message: message, stored: m, queue: q, partition: p, token: token, taken: now, since: now, deadline: deadline}
	c.ctx, c.cancel = context.WithCancelCause(parent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[c] = struct{}{}
	c.expiry = time.AfterFunc(time.Until(deadline), func() { s.expire(c) })
	return c
}

// tooOld reports whether the message must not be started any more: its key may have been granted
// late.
func (c *claim) tooOld() bool { return !c.startBy.IsZero() && trust.Passed(c.startBy, time.Now()) }

// left is for how long the message may still be started.
func (c *claim) left() time.Duration {
	if c.startBy.IsZero() {
		return maxDuration
	}
	return time.Until(c.startBy)
}

// starts is the event of a claim whose handler is about to be called.
func (c *claim) starts() Started {
	m := c.message
	s := Started{Queue: c.queue.name, Message: m, QueuedAfter: c.stored.QueuedAfter}
	now := m.ExpiresAt.Add(-time.Until(c.startBy)) // by the clock of Redis
	s.Age = max(0, now.Sub(m.EnqueuedAt))
	if due := c.stored.Due; !due.IsZero() {
		s.Lag = max(0, now.Sub(due))
	}
	if !c.granted.IsZero() {
		s.KeyWait = c.granted.Sub(c.taken)
	}
	return s
}

// expire ends the ctx of a claim that could not be extended in time.
func (s *claims) expire(c *claim) {
	s.mu.Lock()
	over := !c.settling && trust.Passed(c.deadline, time.Now()) // or it was extended meanwhile
	s.mu.Unlock()
	if over {
		c.cancel(fmt.Errorf("delayqueue: message %s: %w: it could not be extended in time", c.message.ID, ErrClaimLost))
	}
}

// settle records that a claim is being settled. The heartbeat extends it until then.
func (s *claims) settle(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.settling = true
	c.expiry.Stop()
}

// drop removes a claim from the heartbeat.
func (s *claims) drop(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, c)
}

// until returns when another worker can claim the message.
func (s *claims) until(c *claim) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.deadline
}

// of returns a partition's claims.
func (s *claims) of(p *store.Partition) (list []*claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.held {
		if c.partition == p {
			list = append(list, c)
		}
	}
	return list
}

// extended records the answer to an extension. That a claim which is being settled is
// not held any more may be the settling's own doing.
func (s *claims) extended(c *claim, held bool, deadline time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case held && deadline.Before(c.deadline): // the answer to an earlier beat, which was slow
	case held && c.settling:
		c.deadline = deadline
	case held:
		c.deadline = deadline
		c.expiry.Reset(time.Until(deadline))
	case !c.settling:
		delete(s.held, c)
		c.expiry.Stop()
		c.cancel(fmt.Errorf("delayqueue: message %s: %w: redis says that it is not ours", c.message.ID, ErrClaimLost))
	}
}

const (
	extendBatch    = 128
	maxBeats       = 3 // under way at once
	heartbeatConns = 9 // to a node
)

// heartbeat extends the claims in a partition at a third of their length, and more often
// while Redis does not answer, until all handlers have returned. Each partition has its
// own: one whose node is down must not cost the others their claims. Nor does a beat on a
// dead connection: another one follows it.
func (s *claims) heartbeat(p *store.Partition, drained <-chan struct{}) {
	timer := time.NewTimer(s.lease / 3)
	defer timer.Stop()
	var beats sync.WaitGroup
	defer beats.Wait()
	out := make(chan struct{}, maxBeats)
	for {
		select {
		case <-timer.C:
		case <-drained:
			return
		}
		select {
		case out <- struct{}{}:
		case <-drained:
			return
		}
		answered := make(chan bool, 1)
		beats.Go(func() {
			answered <- s.beat(p)
			<-out
		})
		timer.Reset(s.lease / 6)
		next := s.lease / 20
		select {
		case well := <-answered:
			if well {
				next = s.lease / 3
			}
		case <-timer.C:
		}
		timer.Reset(next)
	}
}

func storedOf(claims []*claim) []*store.Message {
	all := make([]*store.Message, len(claims))
	for i, c := range claims {
		all[i] = c.stored
	}
	return all
}

// beat extends the claims in a partition once. It reports whether Redis answered.
func (s *claims) beat(p *store.Partition) bool {
	var failed atomic.Bool
	var batches sync.WaitGroup
	for some := range slices.Chunk(s.of(p), extendBatch) {
		batches.Go(func() {
			messages := storedOf(some)
			sent := time.Now()
			held, err := p.Extend(context.Background(), s.beats.Get(), s.lease, false, messages...)
			if err != nil && s.given == nil {
				// Perhaps no connection could be had: the queue's client may have one.
				sent = time.Now()
				held, err = p.Extend(context.Background(), s.rdb, s.lease, false, messages...)
			}
			if err != nil {
				s.log.Warn("delayqueue: heartbeat failed", slog.Any("error", err), slog.Int("claims", len(some)))
				failed.Store(true)
				return
			}
			for i, c := range some {
				s.extended(c, held[i], trust.Until(sent, s.lease))
			}
		})
	}
	batches.Wait()
	return !failed.Load()
}
