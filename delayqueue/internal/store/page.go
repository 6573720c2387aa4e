package store

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Listed are the sorted sets that together have all messages of a state; none for one that is not listed.
func Listed(state State) []int {
	switch state {
	case Queued:
		return []int{KeyWaiting, KeyFIFOs}
	case Running:
		return []int{KeyRunning}
	case Dead:
		return []int{KeyDead}
	default:
		return nil
	}
}

// Position is where an entry is, or was, in one of these sets.
type Position struct {
	Set    int
	Score  string // as Redis wrote it
	Member string
}

func (p Position) order() float64 {
	f, _ := strconv.ParseFloat(p.Score, 64) // also of infinities
	return f
}

// Time is the score as a time; zero if it is not one.
func (p Position) Time() time.Time {
	if ms := p.order(); ms > 0 && ms < 1e15 {
		return time.UnixMilli(int64(ms))
	}
	return time.Time{}
}

func compare(a, b Position) int {
	return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.order(), b.order()), strings.Compare(a.Member, b.Member))
}

// BeforeKey is before all messages of a key.
func BeforeKey(key string) *Position { return &Position{Set: KeyFIFOs, Score: "0", Member: key + "\n"} }

// IsOf reports whether a position among the FIFOs is of a key.
func (p Position) IsOf(key string) bool { return strings.HasPrefix(p.Member, key+"\n") }

// Place is an entry in a partition's index.
type Place struct {
	Position
	partition *Partition
}

// Places reads where messages of a state are, in all partitions as if they were one, n or more
// after a position: fewer only if there are no more. now is the latest time at which a partition
// was read.
func (s *Store) Places(ctx context.Context, op string, parts []*Partition, state State, after *Position, n int, up bool) (
	all []Place, now time.Time, err error,
) {
	for _, set := range Listed(state) {
		if after != nil && after.Set > set {
			continue
		}
		if after != nil && after.Set < set {
			after = nil
		}
		for more := true; more && len(all) < n; {
			var some []Place
			if some, after, more, now, err = s.page(ctx, op, parts, set, after, n-len(all), up); err != nil {
				return nil, now, err
			}
			for _, at := range some {
				if set != KeyWaiting || strings.HasSuffix(at.Member, " ") { // those of keys are in KeyFIFOs
					all = append(all, at)
				}
			}
		}
	}
	return all, now, nil
}

// page reads one set of the partitions, as if it were one: some n entries after a position, and from
// where to go on, if there are more.
func (s *Store) page(ctx context.Context, op string, parts []*Partition, set int, after *Position, n int, up bool) (
	places []Place, next *Position, more bool, now time.Time, err error,
) {
	way, less := "up", 1
	if !up {
		way, less = "down", -1
	}
	args := []any{set + 1, way, n}
	if after != nil {
		args = append(args, after.Score, after.Member)
	}
	var last *Position // as far as all partitions were read
	for i, call := range s.each(ctx, parts, pageScript, args...) {
		reply, err := call.StringSlice()
		if err != nil || len(reply)%2 != 1 {
			return nil, nil, false, now, Unavailable(ctx, op, cmp.Or(err, luascript.ErrReply))
		}
		if at, ok := readMillis(reply[0]); ok {
			now = later(now, at)
		}
		for j := 1; j < len(reply); j += 2 {
			at := Position{set, reply[j+1], reply[j]}
			if after == nil || less*compare(at, *after) > 0 {
				places = append(places, Place{at, parts[i]})
			}
			if j == 2*n-1 && (last == nil || less*compare(at, *last) < 0) {
				last = &at
			}
		}
	}
	slices.SortStableFunc(places, func(a, b Place) int { return less * compare(a.Position, b.Position) })
	if last != nil {
		places = slices.DeleteFunc(places, func(at Place) bool { return less*compare(at.Position, *last) > 0 })
	}
	return places, last, last != nil, now, nil
}

// Read reads the messages at places of a state. One that is not in that state has none, and only its ID.
func (s *Store) Read(ctx context.Context, op string, state State, places []Place) ([]Found, error) {
	if len(places) == 0 {
		return nil, nil
	}
	pipe, lookups := s.Client.Pipeline(), make([]*Lookup, len(places))
	for i, at := range places {
		id, key := at.message()
		lookups[i] = at.partition.LookUp(ctx, pipe, id, false).withTimes(ctx, pipe, at.partition, key)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	all := make([]Found, len(places))
	for i, at := range places {
		id, key := at.message()
		if err := lookups[i].Err(); err != nil {
			return nil, Unavailable(ctx, op, err)
		}
		f := lookups[i].Read()
		if f.State != state || at.Set != KeyDead && f.Key != key {
			f = Found{Ending: Ending{Status: Status{ID: id}}}
		}
		all[i] = f
	}
	return all, nil
}

// message is the id and, if the set has it, the key of the message at a place.
func (p Position) message() (id, key string) {
	switch p.Set {
	case KeyDead:
		return p.Member, ""
	case KeyFIFOs:
		return SplitPlace(p.Member)
	default:
		id, key, _ = strings.Cut(p.Member, " ")
		return id, key
	}
}

// InLine is a message in its key's FIFO.
type InLine struct {
	Found
	Place    string
	Position int64 // 1 is the first; 0: it is delayed
}

// LineStart is the place before all others of a key's FIFO.
func LineStart(key string) string { return key + "\n" }

// Line reads at most n messages of a key, after a place, and tells whether there are more. One that is not there any more has no State.
func (p *Partition) Line(ctx context.Context, key, after string, n int) (line []InLine, more bool, err error) {
	pipe := p.store.Client.Pipeline()
	before := pipe.ZLexCount(ctx, p.Keys[KeyFIFOs], "["+key+"\n", "["+after)
	found := pipe.ZRangeByLex(ctx, p.Keys[KeyFIFOs], &redis.ZRangeBy{Min: "(" + after, Max: "(" + key + "\v", Count: int64(n) + 1})
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, false, Unavailable(ctx, "line", err)
	}
	places := found.Val()
	if more = len(places) > n; more {
		places = places[:n]
	}
	line, lookups := make([]InLine, len(places)), make([]*Lookup, len(places))
	if len(line) == 0 {
		return nil, false, nil
	}
	pipe = p.store.Client.Pipeline()
	for i, place := range places {
		line[i] = InLine{Place: place, Position: before.Val() + int64(i) + 1}
		if place >= key+"\n~" { // delayed, or quiet
			line[i].Position = 0
		}
		id, _ := SplitPlace(place)
		lookups[i] = p.LookUp(ctx, pipe, id, false).withTimes(ctx, pipe, p, key)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, l := range lookups {
		if err := l.Err(); err != nil {
			return nil, false, Unavailable(ctx, "line", err)
		}
		if f := l.Read(); (f.State == Queued || f.State == Running) && f.Key == key {
			line[i].Found = f
		}
	}
	return line, more, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
