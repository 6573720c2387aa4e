package delayqueue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// Filter selects messages: those that match all its fields that are set. The zero Filter selects
// all.
type Filter struct {
	// Key, Name and Principal are those of the message.
	Key, Name, Principal string
	// Cause is a part of the message's cause; case matters.
	Cause string
	// DiedFrom and DiedBefore bound the time of death: from DiedFrom on, and before DiedBefore. They
	// are for dead letters only.
	DiedFrom, DiedBefore time.Time
}

func (f Filter) matches(e Entry) bool {
	switch {
	case f.Key != "" && f.Key != e.Key:
	case f.Name != "" && f.Name != e.Name:
	case f.Principal != "" && f.Principal != e.Principal:
	case !strings.Contains(e.Cause, f.Cause):
	case e.EndedAt.Before(f.DiedFrom):
	case !f.DiedBefore.IsZero() && !e.EndedAt.Before(f.DiedBefore):
	default:
		return true
	}
	return false
}

const (
	scanPage  = 500 // how many entries a scan reads at once
	scanBatch = 100 // the most messages that a script changes
)

// scan calls act, in batches and in order, with the messages that are in a state when it is called,
// and match. A message that is not in the state is an Entry without a State.
func (q *Queue) scan(ctx context.Context, op string, state State, f Filter, match func(Entry) bool,
	act func(p *store.Partition, batch []Entry) error,
) error {
	return q.scanPages(ctx, op, state, f, match, act, func(int, time.Duration) error { return nil })
}

// scanPages is scan; it also calls looked after each page, with the number of its entries and how
// long it took to read them.
func (q *Queue) scanPages(ctx context.Context, op string, state State, f Filter, match func(Entry) bool,
	act func(p *store.Partition, batch []Entry) error, looked func(n int, took time.Duration) error,
) error {
	m, err := q.manifests.reread(ctx, op)
	if err != nil {
		return err
	}
	parts := m.partitions
	if f.Key != "" {
		parts = []*store.Partition{m.of(f.Key, "")}
	}
	for _, p := range parts {
		if err := q.scanPartition(ctx, op, p, state, f, match, act, looked); err != nil {
			return err
		}
	}
	return nil
}

func (q *Queue) scanPartition(ctx context.Context, op string, p *store.Partition, state State, f Filter, match func(Entry) bool,
	act func(p *store.Partition, batch []Entry) error, looked func(n int, took time.Duration) error,
) error {
	var (
		after *store.Position
		began time.Time // by the clock of Redis
	)
	if !f.DiedFrom.IsZero() { // between it and the millisecond before
		after = &store.Position{Set: store.KeyDead, Score: fmt.Sprintf("%.1f", float64(f.DiedFrom.UnixMilli())-0.5)}
	}
	if state == StateQueued && f.Key != "" {
		after = store.BeforeKey(f.Key)
	}
	for {
		sent := time.Now()
		places, now, err := q.store.Places(ctx, op, []*store.Partition{p}, listed[state], after, scanPage, true)
		if err != nil || len(places) == 0 {
			return err
		}
		if began.IsZero() {
			began = now
		}
		read, last := len(places), places[len(places)-1].Position
		after = &last
		if state == StateQueued && f.Key != "" {
			places = slices.DeleteFunc(places, func(at store.Place) bool { return !at.IsOf(f.Key) })
			if len(places) < read { // those of another key come after the last
				read = 0
			}
		}
		entries, err := q.entries(ctx, op, state, places)
		if err != nil {
			return err
		}
		seen, took := len(entries), time.Since(sent)
		// What comes meanwhile is left alone: a message may die again of what it died
		// of before.
		entries = slices.DeleteFunc(entries, func(e Entry) bool {
			return !match(e) || e.EndedAt.After(began) || state == StateQueued && e.EnqueuedAt.After(began)
		})
		for batch := range slices.Chunk(entries, scanBatch) {
			if err := act(p, batch); err != nil {
				return err
			}
		}
		if err := looked(seen, took); err != nil {
			return err
		}
		ended := state == StateDead && after.Time().After(began) || !f.DiedBefore.IsZero() && !after.Time().Before(f.DiedBefore)
		if read < scanPage || ended {
			return nil
		}
	}
}

// letters are dead letters as they were seen, so that none is meant that was redriven
// since, and has died again.
func deadLetters(batch []Entry) []store.Letter {
	seen := make([]store.Letter, len(batch))
	for i, e := range batch {
		seen[i] = store.Letter{ID: e.ID, Died: "-"} // matches no time of death: it was not a dead letter
		if e.State == StateDead && e.EndedAt.IsZero() {
			seen[i].Died = ""
		} else if e.State == StateDead {
			seen[i].Died = fmt.Sprintf("%011x", e.EndedAt.UnixMilli())
		}
	}
	return seen
}
