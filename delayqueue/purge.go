package delayqueue

import "context"

// Purge forgets a dead letter, with its payload: its id may be enqueued again. A
// message that is no dead letter is ErrNotDead: what is queued is cancelled first. One
// that is not known, or was purged before, is ErrNotFound. It takes two round trips.
func (q *Queue) Purge(ctx context.Context, id string) error {
	_, p, err := q.find(ctx, "purge", id)
	if err != nil {
		return err
	}
	words, err := p.purge(ctx, letter{id: id})
	if err != nil || words[0] == wordPurged {
		return err
	}
	return q.notDead("purge", id, words[0])
}

// PurgeAll forgets the dead letters that the filter chooses and that are dead when it is
// called. The zero Filter chooses all. It returns how many it purged, also with an
// error. When ctx ends it, or Redis trouble, what is under way then may be purged
// without being counted. To call it again is harmless.
//
// It takes three round trips for 100 letters, and reads all dead letters of these times
// and partitions.
func (q *Queue) PurgeAll(ctx context.Context, f Filter) (n int, err error) {
	// What is no dead letter, but has the place of one, is given for purge.lua to tidy up.
	match := func(e Entry) bool { return e.State != StateDead || f.matches(e) }
	err = q.scan(ctx, "purge", StateDead, f, match, func(p *partition, batch []Entry) error {
		words, err := p.purge(ctx, letters(batch)...)
		for _, word := range words {
			if word == wordPurged {
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
// It takes three round trips for 100 messages, and goes through all queued messages of
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
		found, err := p.cancel(ctx, ids...)
		for _, was := range found {
			switch State(was) {
			case StateQueued, StateCancelled: // cancelled: by this call, when its reply was lost
				n++
			default:
			}
		}
		return err
	})
	return n, err
}
