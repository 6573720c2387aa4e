package delayqueue

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// Entry describes a message for operators, without its payload and its result. A field that is not
// known is zero.
type Entry struct {
	Status
	// DueAt is when a queued message may be started. A message that is queued after others of its key
	// also waits for these.
	DueAt time.Time
	// ClaimEnds is when a running message is given to another worker, unless its own worker
	// renews the claim before.
	ClaimEnds time.Time
	// EndedAt is when the message ended, if it has; for a dead letter, when it died.
	EndedAt time.Time
	// PayloadSize and ResultSize are in bytes, as they are stored: with
	// WithEncryption, sealed.
	PayloadSize, ResultSize int64
}

// maxPage is how many messages List returns at most.
const maxPage = 1000

// List returns a page of the messages that are in a state. limit is the most messages of a page, 1
// to 1000. cursor is "" for the first page, and next of the page before for each further one; after
// the last page next is "". A cursor is valid only for its state.
//
//   - StateQueued: first those without a key, by when they are due; then the others,
//     key by key, in the order in which they will run, delayed ones last.
//   - StateRunning: by the end of their claims, the earliest first.
//   - StateDead: the newest first.
//
// The queue has no lists of other states: look such messages up by id, with [Queue.Peek]. Other
// states are [ErrInvalidArgument], as are a bad cursor and a bad limit.
//
// A message that is in the state throughout, and is not extended or put back meanwhile, is on
// exactly one page. A message that cannot be read is left out, and so is, among the queued, one
// that runs: a page may be short, or empty, and not be the last.
//
// It takes two round trips, three for the first page, and a few more while queued messages without
// a key are listed. Redis takes O(limit + (log n)²) in each partition, with n messages in it.
func (q *Queue) List(ctx context.Context, state State, cursor string, limit int) (entries []Entry, next string, err error) {
	if !isListed(state) {
		return nil, "", invalidArgument("list", "state %q: want %s, %s or %s; look others up by id, with Peek",
			state, StateQueued, StateRunning, StateDead)
	}
	if limit < 1 || limit > maxPage {
		return nil, "", invalidArgument("list", "limit %d: want 1 to %d", limit, maxPage)
	}
	var after *store.Position
	if cursor != "" {
		if after, err = readCursor(state, cursor); err != nil {
			return nil, "", err
		}
	}
	m, err := q.paged(ctx, "list", cursor)
	if err != nil {
		return nil, "", err
	}
	places, _, err := q.store.Places(ctx, "list", m.partitions, listed[state], after, limit+1, state != StateDead)
	if err != nil {
		return nil, "", err
	}
	if len(places) > limit {
		places = places[:limit]
		next = cursorAt(state, places[limit-1].Position)
	}
	all, err := q.entries(ctx, "list", state, places)
	if err != nil {
		return nil, "", err
	}
	for _, e := range all {
		if e.State == state {
			entries = append(entries, e)
		}
	}
	return entries, next, nil
}

// paged returns the manifest for a page of a list, read anew for the first page.
func (q *Queue) paged(ctx context.Context, op, cursor string) (*manifest, error) {
	if cursor == "" {
		return q.manifests.reread(ctx, op)
	}
	return q.manifests.agreed(ctx, op)
}

// listed are the states that have lists.
var listed = map[State]store.State{StateQueued: store.Queued, StateRunning: store.Running, StateDead: store.Dead}

func isListed(state State) bool { return listed[state] != store.None }

func cursorAt(state State, p store.Position) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %d %s %s", state, p.Set, p.Score, p.Member))
}

func readCursor(state State, cursor string) (*store.Position, error) {
	plain, err := base64.RawURLEncoding.DecodeString(cursor)
	parts := strings.SplitN(string(plain), " ", 4)
	if err != nil || len(parts) != 4 {
		return nil, invalidArgument("list", "the cursor is none that List returned: begin with an empty one")
	}
	if of := parts[0]; of != string(state) {
		return nil, invalidArgument("list", "the cursor is of a list of state %q, not %q: begin with an empty one", of, state)
	}
	set, err := strconv.Atoi(parts[1])
	_, err2 := strconv.ParseFloat(parts[2], 64)
	if err != nil || err2 != nil || !slices.Contains(store.Listed(listed[state]), set) {
		return nil, invalidArgument("list", "the cursor is damaged: begin with an empty one")
	}
	return &store.Position{Set: set, Score: parts[2], Member: parts[3]}, nil
}

// entries reads the messages at places of a state. One that is not in that state has none, and only its ID.
func (q *Queue) entries(ctx context.Context, op string, state State, places []store.Place) ([]Entry, error) {
	found, err := q.store.Read(ctx, op, listed[state], places)
	entries := make([]Entry, len(found))
	for i, f := range found {
		entries[i] = q.entry(f)
	}
	return entries, err
}

func invalidArgument(op, format string, args ...any) error {
	return fmt.Errorf("delayqueue: %s: %w: %s", op, ErrInvalidArgument, fmt.Sprintf(format, args...))
}
