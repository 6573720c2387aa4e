package delayqueue

import "context"

// Purge forgets a dead letter, with its payload: its id may be enqueued again. A
// message that is no dead letter is ErrNotDead: what is queued is cancelled first. One
// that is not known, or was purged before, is ErrNotFound. It takes two round trips, three with a long payload.
func (q *Queue) Purge(ctx context.Context, id string) error {
	s, p, err := q.find(ctx, "purge", id)
	if err != nil {
		return err
	}
	if s.State == StateDead {
		purged, err := p.purge(ctx, letter{id: id})
		if err != nil || purged[0] {
			return err
		}
		if s, _, err = q.find(ctx, "purge", id); err != nil { // redriven meanwhile
			return err
		}
	}
	return q.notDead("purge", id, s.State)
}

// PurgeAll forgets the dead letters that the filter chooses and that are dead when it is
// called. The zero Filter chooses all. It returns how many it purged, also with an
// error. When ctx ends it, or Redis trouble, what is under way then may be purged
// without being counted. To call it again is harmless.
//
// It takes three round trips for 100 letters, one more for each 32 long payloads, and reads all dead letters of these times
// and partitions.
func (q *Queue) PurgeAll(ctx context.Context, f Filter) (n int, err error) {
	// What is no dead letter, but has the place of one, is given for purge.lua to tidy up.
	match := func(e Entry) bool { return e.State != StateDead || f.matches(e) }
	err = q.scan(ctx, "purge", StateDead, f, match, func(p *partition, batch []Entry) error {
		purged, err := p.purge(ctx, letters(batch)...)
		for i, is := range purged {
			if is && batch[i].State == StateDead {
				n++
			}
		}
		return err
	})
	return n, err
}

// CancelAll cancels the messages that the filter chooses and that are queued when it is
// called, as Cancel does. The zero Filter chooses all; one with times of death is
// ErrInvalidArgument. Running messages are never touched, nor is what is enqueued
// meanwhile. It returns how many it cancelled, also with an error. When ctx ends it, or
// Redis trouble, what is under way then may be cancelled without being counted. To call
// it again is harmless.
//
// It takes three round trips for 100 messages, one more for each 32 long payloads, and goes through all queued messages of
// these partitions; with a Key it reads only those of the key.
func (q *Queue) CancelAll(ctx context.Context, f Filter) (n int, err error) {
	if !f.DiedFrom.IsZero() || !f.DiedBefore.IsZero() {
		return 0, invalidArgument("cancel", "the filter has a time of death, which queued messages do not have")
	}
	match := func(e Entry) bool { return e.State == StateQueued && f.matches(e) }
	err = q.scan(ctx, "cancel", StateQueued, f, match, func(p *partition, batch []Entry) error {
		ids := make([]string, len(batch))
		for i, e := range batch {
			ids[i] = e.ID
		}
		cancelled, err := p.cancel(ctx, ids...)
		for i, is := range cancelled {
			if !is { // by this call all the same, when its reply was lost
				s, _, err := q.find(ctx, "cancel", ids[i])
				is = err == nil && s.State == StateCancelled
			}
			if is {
				n++
			}
		}
		return err
	})
	return n, err
}
