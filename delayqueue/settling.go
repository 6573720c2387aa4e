package delayqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/unixms"
)

// settling is the settlement of one claim.
type settling struct {
	claim   *claim
	outcome outcome
	lease   time.Duration // of what is claimed next
	expires bool          // it would be too old for its next attempt
	again   bool          // it was sent before

	settled settled
	err     error
	done    chan struct{} // closed when the others are set
}

func (c *claim) end(v outcome, lease time.Duration) *settling {
	expires := v.kind == OutcomeRetry && !v.later && !c.startBy.IsZero() && time.Until(c.startBy) <= v.delay
	return &settling{claim: c, outcome: v, lease: lease, expires: expires, done: make(chan struct{})}
}

// settled is the result of a settlement.
type settled struct {
	held    bool          // the claim was the caller's
	expired bool          // the message became too old for its next attempt
	next    *Message      // claimed
	left    time.Duration // for which it may be started
	anyDue  bool          // a message is due now
	sent    time.Time
}

// errClockBack: Redis answered by a clock that is behind the one that was known, as another node's
// may be after a failover. What this settlement claimed when it was sent first can have an earlier end than
// was asked for: it is sent again, by the new clock.
var errClockBack = errors.New("redis has another clock, which is behind")

var settleCodes = map[Outcome]string{
	OutcomeDone: "d", OutcomeDead: "x", OutcomeRetry: "r", OutcomeConflict: "b", OutcomeReturned: "b",
}

func (p *partition) settle(batch []*settling) {
	args := make([]any, 0, 2+12*len(batch))
	lease, ends, clock, now := time.Duration(0), int64(math.MaxInt64), p.clock.Load(), time.Now()
	for _, s := range batch {
		lease = max(lease, s.lease)
		if s.again = !s.claim.settledFrom.IsZero(); !s.again {
			s.claim.settledFrom = now
		}
		ends = min(ends, clock.at(s.claim.settledFrom)+s.lease.Milliseconds())
	}
	args = append(args, lease.Milliseconds(), ends)
	var long []string
	for _, s := range batch {
		args = p.settleArgs(args, s)
		if s.claim.message.body {
			long = append(long, s.claim.message.ID)
		}
	}
	ctx, sent := context.Background(), time.Now()
	reply, err := p.change(ctx, settleScript, long, args...)
	anyDue, answered := false, time.Time{}
	if err == nil && len(reply) != len(batch)+3 {
		err = luascript.ErrReply
	}
	if err == nil {
		var ok bool
		if answered, ok = p.readClock(reply[len(batch)]); !ok {
			err = luascript.ErrReply
		}
		anyDue = reply[len(batch)+1] == int64(1)
		p.noteForgotten(reply[len(batch)+2])
	}
	var next []*Message
	for i, s := range batch {
		if s.err = err; err == nil {
			s.settled, s.err = readSettled(reply[i], answered)
			if s.err == nil && s.again && s.settled.next == nil && answered.UnixMilli() < clock.at(now) {
				s.err = errClockBack
			}
		}
		if s.settled.next != nil {
			next = append(next, s.settled.next)
		}
	}
	err = p.fetch(ctx, lease, next) // to settle again with the tokens brings them again
	for _, s := range batch {
		if s.err = cmp.Or(s.err, err); s.err != nil {
			s.err = redisError(ctx, "settle", s.err)
		}
		s.settled.anyDue, s.settled.sent = anyDue, sent
		s.settled.expired = s.expires && s.settled.held
		close(s.done)
	}
}

// settleArgs appends the arguments of settle.lua for one claim.
func (p *partition) settleArgs(args []any, s *settling) []any {
	m, v := s.claim.message, s.outcome
	how := settleCodes[v.kind]
	switch {
	case v.handedBack:
		how = "h"
	case s.expires && m.given:
		how = "Eg"
	case s.expires:
		how = "E"
	case how == "x":
		how += haltCodes[p.queue.halt]
	case how == "d" && m.given:
		how = "dg"
	case (v.later || how == "b") && v.awaitsKey:
		how = "bw"
	case v.later:
		how = "b"
	}
	if v.lost {
		m.Losses++
	}
	if v.handedBack || v.later || v.kind == OutcomeRetry || v.kind == OutcomeDead {
		m.cause = string(p.queue.sealed(kindCause, m, []byte(v.cause())))
	}
	if v.later || v.kind == OutcomeConflict || v.kind == OutcomeReturned {
		m.Attempt = max(0, m.Attempt-1)
	}
	if v.kind == OutcomeConflict {
		m.Conflicts++
	}
	if v.handedBack || v.later {
		m.handed++
	}
	if v.kind == OutcomeDead && len(v.result) > maxDeadResult {
		v.result = nil
	}
	slot := ""
	if m.coalesces {
		slot = "s" + about(m.Key, m.Name, m.Principal)
	}
	args = append(args, m.ID, m.Key, m.Principal, m.seq, m.state, how, slot, m.size)
	if how != "r" && how[0] != 'b' && how != "h" {
		result := p.queue.sealed(kindResult, m, v.result)
		args = append(args, m.ending(s.claim.token, len(result)), result)
	} else {
		args = append(args, m.attempts(s.claim.token), fmt.Sprint(ceilMilliseconds(v.delay), " ", cmp.Or(unixms.Of(m.ExpiresAt), never)))
	}
	return append(args, v.next, v.which[:min(1, len(v.which))])
}

const never = 1e13 // ms: when a message whose record cannot be read becomes too old

// sealed returns plain as it is stored, for a message that has an outcome; nil if there is none.
func (q *Queue) sealed(kind string, m Message, plain []byte) []byte {
	if len(plain) == 0 {
		return nil
	}
	stored, err := q.sealer.seal(kind, m.sealedOf(), plain)
	if err != nil {
		return nil // too large for Redis: both are bounded far below
	}
	return stored
}

func readSettled(reply any, now time.Time) (s settled, err error) {
	f, ok := reply.([]any)
	var next any
	switch {
	case !ok:
		f = []any{reply}
	case len(f) == messageFields:
		f = []any{int64(1), reply}
	}
	if len(f) == 0 {
		return s, luascript.ErrReply
	}
	switch f[0] {
	case int64(0):
	case int64(1):
		s.held = true
	default:
		return s, luascript.ErrReply
	}
	if len(f) > 1 {
		next = f[1]
	}
	if next != nil {
		m, ok := readMessage(next)
		if !ok {
			return s, luascript.ErrReply
		}
		s.next, s.left = &m, m.ExpiresAt.Sub(now)
	}
	return s, nil
}
