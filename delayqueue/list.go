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

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Entry is a message as its operators see it: without its payload and its result.
// What is not known of it is zero.
type Entry struct {
	Status
	// DueAt is when a queued message may be started. One behind others of its key
	// waits for these too.
	DueAt time.Time
	// ClaimEnds is when a running message is given to another worker, unless its own
	// says by then that it is still at it.
	ClaimEnds time.Time
	// EndedAt is when a message that has ended did so: a dead letter died.
	EndedAt time.Time
	// PayloadSize and ResultSize are in bytes, as they are stored: with
	// WithEncryption, sealed.
	PayloadSize, ResultSize int64
}

// maxPage is how many messages List returns at most.
const maxPage = 1000

// List returns a page of the messages that are in a state, at most limit of them: 1 to
// 1000. cursor is "" for the first page, and what the last call returned for the next
// one; after the last page that is "" again. A cursor keeps for as long as the queue
// has the same partitions, and means nothing to another state.
//
//   - StateQueued: those first that expire first. Of messages with one MaxAge these are
//     the first to come.
//   - StateRunning: those first whose claims end first.
//   - StateDead: the newest first.
//
// Of other states the queue keeps no list: look them up by id, with Peek. They are
// ErrInvalidArgument, as are a bad cursor and a bad limit.
//
// A message that is in the state throughout, and is not extended or put back
// meanwhile, is on one page. One that is junk is left out, so that a page may be short,
// or empty, and not the last.
//
// It takes two round trips, and Redis O(limit + (log n)²) in each partition, with n
// messages in it.
func (q *Queue) List(ctx context.Context, state State, cursor string, limit int) (entries []Entry, next string, err error) {
	set, ok := listed[state]
	if !ok {
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
	places, _, err := q.page(ctx, "list", q.partitions, set, after, limit+1)
	if err != nil {
		return nil, "", err
	}
	if len(places) > limit {
		places = places[:limit]
		next = places[limit-1].cursor(state)
	}
	all, err := q.look(ctx, "list", state, places)
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

// index is a sorted set with all messages of a state, and which way it is read.
type index struct {
	name string
	up   bool
}

var listed = map[State]index{
	StateQueued: {"open", true}, StateRunning: {"running", true}, StateDead: {"dead", false},
}

// position is where an entry is, or was, in an index.
type position struct {
	score  string // as Redis writes it
	member string
}

func (p position) order() float64 {
	f, _ := strconv.ParseFloat(p.score, 64) // also of infinities
	return f
}

// time is the score as a time; zero if it is junk.
func (p position) time() time.Time {
	if ms := p.order(); ms > 0 && ms < 1e15 {
		return time.UnixMilli(int64(ms))
	}
	return time.Time{}
}

func compare(a, b position) int {
	return cmp.Or(cmp.Compare(a.order(), b.order()), strings.Compare(a.member, b.member))
}

func (p position) cursor(state State) string {
	return base64.RawURLEncoding.EncodeToString([]byte(string(state) + " " + p.score + " " + p.member))
}

func readCursor(state State, cursor string) (*position, error) {
	plain, err := base64.RawURLEncoding.DecodeString(cursor)
	parts := strings.SplitN(string(plain), " ", 3)
	if err != nil || len(parts) != 3 {
		return nil, invalidArgument("list", "the cursor is none that List returned: begin with an empty one")
	}
	if of := parts[0]; of != string(state) {
		return nil, invalidArgument("list", "the cursor is of a list of state %q, not %q: begin with an empty one", of, state)
	}
	if _, err := strconv.ParseFloat(parts[1], 64); err != nil {
		return nil, invalidArgument("list", "the cursor is damaged: begin with an empty one")
	}
	return &position{parts[1], parts[2]}, nil
}

// place is an entry in a partition's index.
type place struct {
	position
	partition *partition
}

// page reads an index of partitions as if it were one, at most n entries of it after a
// position. now is the latest time at which a partition was read.
func (q *Queue) page(ctx context.Context, op string, parts []*partition, of index, after *position, n int) (
	places []place, now time.Time, err error,
) {
	way, less := "up", 1
	if !of.up {
		way, less = "down", -1
	}
	args := []any{of.name, way, n}
	if after != nil {
		args = append(args, after.score, after.member)
	}
	for i, call := range q.each(ctx, parts, pageScript, args...) {
		reply, err := call.StringSlice()
		if err != nil || len(reply)%2 != 1 {
			return nil, now, redisError(ctx, op, cmp.Or(err, luascript.ErrReply))
		}
		ms, _ := strconv.ParseInt(reply[0], 10, 64)
		if at := time.UnixMilli(ms); at.After(now) {
			now = at
		}
		for j := 1; j < len(reply); j += 2 {
			places = append(places, place{position{reply[j+1], reply[j]}, parts[i]})
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return less * compare(a.position, b.position) })
	return places[:min(n, len(places))], now, nil
}

// look reads the messages at places of a state's index. One that is not in that state
// has none, and only its ID.
func (q *Queue) look(ctx context.Context, op string, state State, places []place) ([]Entry, error) {
	if len(places) == 0 {
		return nil, nil
	}
	pipe, looks := q.rdb.Pipeline(), make([]look, len(places))
	for i, at := range places {
		id, _ := at.message(state)
		looks[i] = lookAt(ctx, pipe, at.partition, id)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	entries := make([]Entry, len(places))
	for i, at := range places {
		id, key := at.message(state)
		e, err := looks[i].entry(q, id)
		if err != nil {
			return nil, redisError(ctx, op, err)
		}
		if e.State != state || state != StateDead && e.Key != key {
			e = Entry{Status: Status{ID: id}}
		} else if state == StateRunning {
			e.ClaimEnds = at.time()
		}
		entries[i] = e
	}
	return entries, nil
}

// message is the id and, if the index has it, the key of the message at a place.
func (at place) message(state State) (id, key string) {
	if state == StateDead {
		return at.member, ""
	}
	id, key, _ = strings.Cut(at.member, " ")
	return id, key
}

// look is an Entry on its way.
type look struct {
	fields          *redis.SliceCmd
	payload, result *redis.IntCmd
}

func lookAt(ctx context.Context, pipe redis.Pipeliner, p *partition, id string) look {
	name := p.recordName(id)
	return look{
		pipe.HMGet(ctx, name, entryFields...),
		pipe.HStrLen(ctx, name, "payload"), pipe.HStrLen(ctx, name, "result"),
	}
}

func (l look) entry(q *Queue, id string) (Entry, error) {
	for _, cmd := range []redis.Cmder{l.fields, l.payload, l.result} {
		if err := cmd.Err(); redis.HasErrorPrefix(err, "WRONGTYPE") {
			return Entry{Status: Status{ID: id}}, nil
		} else if err != nil {
			return Entry{}, err
		}
	}
	r := readRecord(entryFields, l.fields.Val())
	e := Entry{Status: r.status(id), PayloadSize: l.payload.Val(), ResultSize: l.result.Val()}
	e.Cause = q.cause(e.Status)
	if e.State == StateQueued {
		e.DueAt = r.time("due")
	} else if e.State.Ended() {
		e.EndedAt = r.time("ended")
	}
	return e, nil
}

// Peek returns what the queue knows of a message, in whatever state, but not its
// payload and its result: for these there are Payload and Result. Ids that were never
// stored, or are remembered no more, are ErrNotFound. It takes two round trips.
func (q *Queue) Peek(ctx context.Context, id string) (Entry, error) {
	r, p, err := q.find(ctx, "peek", id, []string{"state", "key"})
	if err != nil {
		return Entry{}, err
	}
	pipe := q.rdb.Pipeline()
	at := lookAt(ctx, pipe, p, id)
	ends := pipe.ZScore(ctx, p.base+":running", id+" "+r.text("key"))
	_, _ = pipe.Exec(ctx) // each command has its own error
	e, err := at.entry(q, id)
	switch {
	case err != nil:
		return Entry{}, redisError(ctx, "peek", err)
	case e.State == "": // gone since it was found
		return Entry{}, fmt.Errorf("delayqueue: peek of message %q in queue %q: %w", id, q.name, ErrNotFound)
	case e.State == StateRunning && ends.Err() == nil:
		e.ClaimEnds = position{score: strconv.FormatFloat(ends.Val(), 'f', -1, 64)}.time()
	}
	return e, nil
}

// Payload returns the payload of a message that is queued, running or dead: what was
// enqueued, which may be confidential. Of others it is not kept: ErrNotFound, as for
// ids that are not known. With WithEncryption it is opened; if it cannot be, that is
// ErrSealed. It takes one round trip.
func (q *Queue) Payload(ctx context.Context, id string) ([]byte, error) {
	r, _, err := q.find(ctx, "payload", id, []string{"state", "key", "name", "principal", "payload"})
	if err != nil {
		return nil, err
	}
	stored, ok := r["payload"]
	if state := State(r.text("state")); !ok || state.Ended() && state != StateDead {
		return nil, fmt.Errorf("delayqueue: payload of message %q in queue %q: %w: it is %s, its payload is not kept",
			id, q.name, ErrNotFound, r.text("state"))
	}
	return q.sealer.open(kindPayload, sealedOf{id, r.text("key"), r.text("name"), r.text("principal")}, []byte(stored))
}

func invalidArgument(op, format string, args ...any) error {
	return fmt.Errorf("delayqueue: %s: %w: %s", op, ErrInvalidArgument, fmt.Sprintf(format, args...))
}
