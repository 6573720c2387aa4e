package delayqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// find looks a message up, also a dead letter whose id no job could have. Which partition has it
// depends on its key, which the caller does not know: all are asked at once.
func (q *Queue) find(ctx context.Context, op, id string) (store.Found, *store.Partition, error) {
	m, err := q.manifests.agreed(ctx, op)
	if err != nil {
		return store.Found{}, nil, err
	}
	s, p, err := q.store.Find(ctx, op, m.partitions, id)
	if p == nil && err == nil && time.Since(m.read) > manifestKnows { // Redis may have lost it, and the queue was begun anew
		was := m
		if m, err = q.manifests.reread(ctx, op); err == nil && len(m.partitions) != len(was.partitions) {
			s, p, err = q.store.Find(ctx, op, m.partitions, id)
		}
	}
	if p == nil && err == nil {
		err = fmt.Errorf("delayqueue: %s of message %q in queue %q: %w", op, id, q.name, ErrNotFound)
	}
	return s, p, err
}

// status is what is stored of a message, with its cause opened.
func (q *Queue) status(f store.Found) Status {
	s := Status{
		ID: f.ID, Key: f.Key, Name: f.Name, Principal: f.Principal, State: states[f.State], Attempts: f.Attempts, Conflicts: f.Conflicts,
		Losses: f.Losses, EnqueuedAt: f.EnqueuedAt, ExpiresAt: f.ExpiresAt, SupersededBy: f.SupersededBy,
	}
	s.Cause = q.sealer.cause(sealedOf{f.ID, f.Key, f.Name, f.Principal}, f.Cause)
	return s
}

// Status returns where a message is in its life. For an id that was never stored, or is no longer
// remembered, the error is [ErrNotFound].
func (q *Queue) Status(ctx context.Context, id string) (Status, error) {
	if checkID(id) != nil {
		return Status{}, fmt.Errorf("delayqueue: status: %w", ErrNotFound)
	}
	s, _, err := q.find(ctx, "status", id)
	return q.status(s), err
}

// Result returns what the handler of a message that is done, or dead, gave to [SetResult]. For a
// message in another state, without a result, or no longer remembered, the error is [ErrNotFound].
// If the Queue's Keyring cannot open the result it is [ErrSealed]. It takes two round trips, and
// one for a dead letter.
func (q *Queue) Result(ctx context.Context, id string) ([]byte, error) {
	if checkID(id) != nil {
		return nil, fmt.Errorf("delayqueue: result: %w", ErrNotFound)
	}
	s, p, err := q.find(ctx, "result", id)
	if err != nil {
		return nil, err
	}
	of := sealedOf{id, s.Key, s.Name, s.Principal}
	switch {
	case s.ResultSize == 0 || s.State != store.Done && s.State != store.Dead:
		return nil, fmt.Errorf("delayqueue: result of message %q in queue %q: %w", id, q.name, ErrNotFound)
	case s.State == store.Dead:
		return q.sealer.open(kindResult, of, []byte(s.Result))
	}
	result, ok, err := p.Result(ctx, id)
	if err == nil && !ok {
		err = fmt.Errorf("delayqueue: result of message %q in queue %q: %w: it ended, and its result is not stored any more", id, q.name, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return q.sealer.open(kindResult, of, result)
}

// Payload returns the payload of a message that is queued, running or dead: what was enqueued,
// which may be confidential. Payloads of other messages are not stored: [ErrNotFound], as for ids
// that are not known. With [WithEncryption] it is opened; if it cannot be opened the error is
// [ErrSealed]. It takes a round trip, and two for a long payload.
func (q *Queue) Payload(ctx context.Context, id string) ([]byte, error) {
	s, p, err := q.find(ctx, "payload", id)
	if err != nil {
		return nil, err
	}
	payload, kept := []byte(nil), !s.State.Ended() || s.State == store.Dead
	if kept {
		payload, kept, err = p.Payload(ctx, s)
	}
	if err == nil && !kept {
		err = fmt.Errorf("delayqueue: payload of message %q in queue %q: %w: it is %s, its payload is not kept", id, q.name, ErrNotFound, states[s.State])
	}
	if err != nil {
		return nil, err
	}
	_, payload, err = q.sealer.openPayload(sealedOf{id, s.Key, s.Name, s.Principal}, payload)
	return payload, err
}

// Peek returns what the queue knows of a message in any state, without its payload and its result:
// for these there are [Queue.Payload] and [Queue.Result]. For an id that was never stored, or is no
// longer remembered, the error is [ErrNotFound]. It takes two round trips.
func (q *Queue) Peek(ctx context.Context, id string) (Entry, error) {
	for {
		s, p, err := q.find(ctx, "peek", id)
		if err != nil {
			return Entry{}, err
		}
		now, err := p.Look(ctx, "peek", id, s.Key)
		if err != nil {
			return Entry{}, err
		}
		e := q.entry(now)
		if e.State == StateQueued && s.State == store.Expired {
			e.State, e.DueAt = StateExpired, time.Time{}
		}
		if e.State != "" { // else it is gone since it was found
			return e, nil
		}
	}
}

// entry is a message that was looked at, with what an Entry has beside a Status.
func (q *Queue) entry(f store.Found) Entry {
	e := Entry{Status: q.status(f), EndedAt: f.Ended, ResultSize: f.ResultSize}
	if !f.State.Ended() || f.State == store.Dead {
		e.PayloadSize = f.Size
	}
	switch f.State {
	case store.Queued:
		if e.DueAt = f.Due; e.DueAt.IsZero() {
			e.DueAt = f.EnqueuedAt
		}
	case store.Running:
		e.ClaimEnds = f.ClaimEnds
	default:
	}
	return e
}
