package delayqueue

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perkey-go/perkey/internal/luascript"
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
	if listed[state] == nil {
		return nil, "", invalidArgument("list", "state %q: want %s, %s or %s; look others up by id, with Peek",
			state, StateQueued, StateRunning, StateDead)
	}
	if limit < 1 || limit > maxPage {
		return nil, "", invalidArgument("list", "limit %d: want 1 to %d", limit, maxPage)
	}
	var after *position
	if cursor != "" {
		if after, err = readCursor(state, cursor); err != nil {
			return nil, "", err
		}
	}
	m, err := q.paged(ctx, "list", cursor)
	if err != nil {
		return nil, "", err
	}
	places, _, err := q.places(ctx, "list", m.partitions, state, after, limit+1, listed[state][0] != keyDead)
	if err != nil {
		return nil, "", err
	}
	if len(places) > limit {
		places = places[:limit]
		next = places[limit-1].cursor(state)
	}
	all, err := q.lookUpAll(ctx, "list", state, places)
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
		return q.reread(ctx, op)
	}
	return q.agreed(ctx, op)
}

// listed are the sorted sets that together have all messages of a state.
var listed = map[State][]int{
	StateQueued: {keyWaiting, keyFIFOs}, StateRunning: {keyRunning}, StateDead: {keyDead},
}

// position is where an entry is, or was, in one of these sets.
type position struct {
	set    int
	score  string // as Redis wrote it
	member string
}

func (p position) order() float64 {
	f, _ := strconv.ParseFloat(p.score, 64) // also of infinities
	return f
}

// time is the score as a time; zero if it is not one.
func (p position) time() time.Time {
	if ms := p.order(); ms > 0 && ms < 1e15 {
		return time.UnixMilli(int64(ms))
	}
	return time.Time{}
}

func compare(a, b position) int {
	return cmp.Or(cmp.Compare(a.set, b.set), cmp.Compare(a.order(), b.order()), strings.Compare(a.member, b.member))
}

func (p position) cursor(state State) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %d %s %s", state, p.set, p.score, p.member))
}

func readCursor(state State, cursor string) (*position, error) {
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
	if err != nil || err2 != nil || !slices.Contains(listed[state], set) {
		return nil, invalidArgument("list", "the cursor is damaged: begin with an empty one")
	}
	return &position{set, parts[2], parts[3]}, nil
}

// place is an entry in a partition's index.
type place struct {
	position
	partition *partition
}

// places reads where messages of a state are, in all partitions as if they were one, n or more
// after a position: fewer only if there are no more. now is the latest time at which a partition
// was read.
func (q *Queue) places(ctx context.Context, op string, parts []*partition, state State, after *position, n int, up bool) (
	all []place, now time.Time, err error,
) {
	for _, set := range listed[state] {
		if after != nil && after.set > set {
			continue
		}
		if after != nil && after.set < set {
			after = nil
		}
		for more := true; more && len(all) < n; {
			var some []place
			if some, after, more, now, err = q.page(ctx, op, parts, set, after, n-len(all), up); err != nil {
				return nil, now, err
			}
			for _, at := range some {
				if set != keyWaiting || strings.HasSuffix(at.member, " ") { // those of keys are in keyFIFOs
					all = append(all, at)
				}
			}
		}
	}
	return all, now, nil
}

// page reads one set of the partitions, as if it were one: some n entries after a position, and from
// where to go on, if there are more.
func (q *Queue) page(ctx context.Context, op string, parts []*partition, set int, after *position, n int, up bool) (
	places []place, next *position, more bool, now time.Time, err error,
) {
	way, less := "up", 1
	if !up {
		way, less = "down", -1
	}
	args := []any{set + 1, way, n}
	if after != nil {
		args = append(args, after.score, after.member)
	}
	var last *position // as far as all partitions were read
	for i, call := range q.each(ctx, parts, pageScript, args...) {
		reply, err := call.StringSlice()
		if err != nil || len(reply)%2 != 1 {
			return nil, nil, false, now, redisError(ctx, op, cmp.Or(err, luascript.ErrReply))
		}
		if at, ok := readMillis(reply[0]); ok {
			now = later(now, at)
		}
		for j := 1; j < len(reply); j += 2 {
			at := position{set, reply[j+1], reply[j]}
			if after == nil || less*compare(at, *after) > 0 {
				places = append(places, place{at, parts[i]})
			}
			if j == 2*n-1 && (last == nil || less*compare(at, *last) < 0) {
				last = &at
			}
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return less * compare(a.position, b.position) })
	if last != nil {
		places = slices.DeleteFunc(places, func(at place) bool { return less*compare(at.position, *last) > 0 })
	}
	return places, last, last != nil, now, nil
}

// lookUpAll reads the messages at places of a state. One that is not in that state has none, and
// only its ID.
func (q *Queue) lookUpAll(ctx context.Context, op string, state State, places []place) ([]Entry, error) {
	if len(places) == 0 {
		return nil, nil
	}
	pipe, lookups := q.rdb.Pipeline(), make([]*lookup, len(places))
	for i, at := range places {
		id, key := at.message()
		lookups[i] = at.partition.lookUp(ctx, pipe, id, false)
		lookups[i].entry(ctx, pipe, at.partition, key)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	entries := make([]Entry, len(places))
	for i, at := range places {
		id, key := at.message()
		if err := lookups[i].err(); err != nil {
			return nil, redisError(ctx, op, err)
		}
		e := q.entry(lookups[i])
		if e.State != state || at.set != keyDead && e.Key != key {
			e = Entry{Status: Status{ID: id}}
		}
		entries[i] = e
	}
	return entries, nil
}

// message is the id and, if the set has it, the key of the message at a place.
func (at place) message() (id, key string) {
	switch at.set {
	case keyDead:
		return at.member, ""
	case keyFIFOs:
		return splitPlace(at.member)
	default:
		id, key, _ = strings.Cut(at.member, " ")
		return id, key
	}
}

func invalidArgument(op, format string, args ...any) error {
	return fmt.Errorf("delayqueue: %s: %w: %s", op, ErrInvalidArgument, fmt.Sprintf(format, args...))
}
