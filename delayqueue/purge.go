package delayqueue

import (
	"context"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// Purge removes a dead letter, with its payload: its id may then be enqueued again. For a message
// that is not a dead letter the error is [ErrNotDead]: cancel a queued message first. For one that
// is not known, or was purged before, it is [ErrNotFound]. It takes two round trips, three with a
// long payload.
func (q *Queue) Purge(ctx context.Context, id string) error {
	s, p, err := q.find(ctx, "purge", id)
	if err != nil {
		return err
	}
	if s.State == store.Dead && !s.Forgotten {
		purged, err := p.Purge(ctx, store.Letter{ID: id})
		if err != nil || purged[0] {
			return err
		}
		if s, _, err = q.find(ctx, "purge", id); err != nil { // redriven meanwhile
			return err
		}
	}
	return q.notDead("purge", id, s)
}

// PurgeAll removes the dead letters that the filter selects and that are dead when it is called.
// The zero Filter selects all. It returns how many it purged, also with an error. If ctx ends it,
// or an error of Redis, some letters may be purged without being counted. To call it again is
// harmless.
//
// It takes three round trips for 100 letters, one more for each 32 long payloads, and reads all
// dead letters of these times and partitions.
func (q *Queue) PurgeAll(ctx context.Context, f Filter) (n int, err error) {
	// An entry that has the place of a dead letter and is not one is passed too: purge.lua removes it.
	match := func(e Entry) bool { return e.State != StateDead || f.matches(e) }
	err = q.scan(ctx, "purge", StateDead, f, match, func(p *store.Partition, batch []Entry) error {
		purged, err := p.Purge(ctx, deadLetters(batch)...)
		for i, is := range purged {
			if is && batch[i].State == StateDead {
				n++
			}
		}
		return err
	})
	return n, err
}

// CancelAll cancels the messages that the filter selects and that are queued when it is called, as
// [Queue.Cancel] does. The zero Filter selects all; one with times of death is
// [ErrInvalidArgument]. It does not affect running messages, nor messages that are enqueued
// meanwhile. It returns how many it cancelled, also with an error. If ctx ends it, or an error of
// Redis, some messages may be cancelled without being counted. To call it again is harmless.
//
// It takes three round trips for 100 messages, one more for each 32 long payloads, and reads all
// queued messages of these partitions; with a Key it reads only those of the key.
func (q *Queue) CancelAll(ctx context.Context, f Filter) (n int, err error) {
	if !f.DiedFrom.IsZero() || !f.DiedBefore.IsZero() {
		return 0, invalidArgument("cancel", "the filter has a time of death, which queued messages do not have")
	}
	match := func(e Entry) bool { return e.State == StateQueued && f.matches(e) }
	err = q.scan(ctx, "cancel", StateQueued, f, match, func(p *store.Partition, batch []Entry) error {
		ids := make([]string, len(batch))
		for i, e := range batch {
			ids[i] = e.ID
		}
		cancelled, err := p.Cancel(ctx, ids...)
		for i, is := range cancelled {
			if !is { // perhaps by an earlier try of this call, whose reply was lost
				s, _, err := q.find(ctx, "cancel", ids[i])
				is = err == nil && s.State == store.Cancelled
			}
			if is {
				n++
			}
		}
		return err
	})
	return n, err
}
