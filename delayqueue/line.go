package delayqueue

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// LineEntry is a message in its key's FIFO; see [Queue.Line].
type LineEntry struct {
	Entry
	// Position is 1 for the message that runs, or will run next, 2 for the one after it, and so on.
	// It is 0 for a delayed message, which has no place before it is due.
	Position int64
}

// Line returns a page of the messages of a key: those in its FIFO, in the order in which they run,
// and then those that are delayed. limit is the most messages of a page, 1 to 1000. cursor is ""
// for the first page, and next of the page before for each further one; after the last page next is
// "". A cursor stays valid while messages are added and end, but only for its key. A page may be
// short, or empty, and not be the last. A bad key is core.ErrInvalidKey, a bad cursor or limit
// [ErrInvalidArgument].
//
// It takes two round trips, three for the first page, and Redis O(limit + log n), with n messages
// in the partition.
func (q *Queue) Line(ctx context.Context, key, cursor string, limit int) (line []LineEntry, next string, err error) {
	if err := core.ValidateKey(key); err != nil {
		return nil, "", err
	}
	if limit < 1 || limit > maxPage {
		return nil, "", invalidArgument("line", "limit %d: want 1 to %d", limit, maxPage)
	}
	m, err := q.paged(ctx, "line", cursor)
	if err != nil {
		return nil, "", err
	}
	last := store.LineStart(key) // the place after which the page begins
	if cursor != "" {
		plain, err := base64.RawURLEncoding.DecodeString(cursor)
		if err != nil || len(plain) <= len(last) || !strings.HasPrefix(string(plain), last) {
			return nil, "", invalidArgument("line", "the cursor is none that Line returned for this key: begin with an empty one")
		}
		last = string(plain)
	}
	messages, more, err := m.of(key, "").Line(ctx, key, last, limit)
	if err != nil {
		return nil, "", err
	}
	if more {
		next = base64.RawURLEncoding.EncodeToString([]byte(messages[limit-1].Place))
	}
	for _, at := range messages {
		if at.State != store.None { // else it has ended
			line = append(line, LineEntry{Entry: q.entry(at.Found), Position: at.Position})
		}
	}
	return line, next, nil
}

const countRest = 4 // how many times as long as it reads Count pauses

var errCountedEnough = errors.New("delayqueue: counted enough")

// Count returns how many messages are in a state and match the filter. For [StateQueued] these are
// the messages that [Queue.CancelAll] would change if it were called now, for [StateDead] those of
// [Queue.RedriveAll] and [Queue.PurgeAll]. [StateRunning] can be counted too. Other states, and
// times of death with a state that is not dead, are [ErrInvalidArgument].
//
// It reads the messages of the state, or with a Key and StateQueued those of the key: at most
// 100,000. If there are more, exact is false, and n counts only the first 100,000. It reads 500 at
// a time with pauses in between, so that it takes at most a fifth of Redis's time: 100,000 take
// some seconds. If ctx ends first, or Redis does not answer, n is the count so far, with the error.
func (q *Queue) Count(ctx context.Context, state State, f Filter) (n int64, exact bool, err error) {
	switch {
	case !isListed(state):
		return 0, false, invalidArgument("count", "state %q: want %s, %s or %s", state, StateQueued, StateRunning, StateDead)
	case state != StateDead && (!f.DiedFrom.IsZero() || !f.DiedBefore.IsZero()):
		return 0, false, invalidArgument("count", "the filter has a time of death, which %s messages do not have", state)
	}
	match := func(e Entry) bool { return e.State == state && f.matches(e) }
	seen := 0
	err = q.scanPages(ctx, "count", state, f, match, func(_ *store.Partition, batch []Entry) error {
		n += int64(len(batch))
		return nil
	}, func(read int, took time.Duration) error {
		switch seen += read; {
		case read < scanPage:
			return nil
		case seen >= q.countMost:
			return errCountedEnough
		}
		return sleepUntil(ctx, "count", time.Now(), (countRest * took).Seconds())
	})
	if errors.Is(err, errCountedEnough) {
		return n, false, nil
	}
	return n, err == nil, err
}
