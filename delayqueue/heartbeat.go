package delayqueue

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

// claim is a message that this Worker has claimed and not settled yet.
type claim struct {
	message Message
	token   string
	// ctx ends with ErrClaimLost when the claim is lost, and with the Worker's.
	ctx    context.Context
	cancel context.CancelCauseFunc
	taken  time.Time
	result *resultOf

	// Guarded by claims.mu.
	deadline time.Time // until then nobody else can claim the message
	expiry   *time.Timer
	settling bool
}

// claims keeps a Worker's claims alive, and ends their ctx in time. One
// goroutine asks Redis for all of them; a timer for each, which needs no
// goroutine, sees to it that a slow Redis cannot keep a ctx from ending.
type claims struct {
	mu   sync.Mutex
	held map[*claim]struct{}
}

func (s *claims) add(parent context.Context, m Message, token string, deadline time.Time) *claim {
	c := &claim{message: m, token: token, taken: time.Now(), deadline: deadline}
	c.ctx, c.cancel = context.WithCancelCause(parent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[c] = struct{}{}
	c.expiry = time.AfterFunc(time.Until(deadline), func() { s.expire(c) })
	return c
}

// expire ends the ctx of a claim that could not be extended in time.
func (s *claims) expire(c *claim) {
	s.mu.Lock()
	over := !c.settling && !time.Now().Before(c.deadline) // or it was extended meanwhile
	s.mu.Unlock()
	if over {
		c.cancel(fmt.Errorf("delayqueue: message %s: %w: it could not be extended in time", c.message.ID, ErrClaimLost))
	}
}

// settling takes a claim out of the heartbeat. It returns the time at which
// somebody else can claim the message.
func (s *claims) settling(c *claim) (deadline time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.settling = true
	c.expiry.Stop()
	delete(s.held, c)
	return c.deadline
}

// list returns the claims to be extended.
func (s *claims) list() []*claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*claim, 0, len(s.held))
	for c := range s.held {
		list = append(list, c)
	}
	return list
}

// extended records the answer to an extension. A claim that is being settled is
// left alone: that it is not held any more may be the settling's own doing.
func (s *claims) extended(c *claim, held bool, deadline time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.settling:
	case held:
		c.deadline = deadline
		c.expiry.Reset(time.Until(deadline))
	default:
		delete(s.held, c)
		c.expiry.Stop()
		c.cancel(fmt.Errorf("delayqueue: message %s: %w: redis says that it is not ours", c.message.ID, ErrClaimLost))
	}
}

const extendBatch = 128

// heartbeat extends the Worker's claims at a third of their length, and more
// often while Redis does not answer, until all handlers have returned.
func (w *Worker) heartbeat(drained <-chan struct{}) {
	timer := time.NewTimer(w.lease / 3)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-drained:
			return
		}
		next := w.lease / 3
		for list := w.claims.list(); len(list) > 0; {
			some := list[:min(len(list), extendBatch)]
			list = list[len(some):]
			sent := time.Now()
			held, err := w.queue.extend(context.Background(), w.lease, some)
			if err != nil {
				w.log.Warn("delayqueue: heartbeat failed", slog.Any("error", err), slog.Int("claims", len(some)))
				next = w.lease / 20
				continue
			}
			for i, c := range some {
				w.claims.extended(c, held[i], trust.Until(sent, w.lease))
			}
		}
		timer.Reset(next)
	}
}
