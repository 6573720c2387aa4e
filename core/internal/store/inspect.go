package store

// Reports on keys, and changes of them on behalf of others than their holders.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/internal/ctxerr"
	"github.com/perkey-go/perkey/internal/luascript"
)

// Info is what Redis knows of a key at one moment; see core.KeyInfo, which documents it.
type Info struct {
	Key           string
	At            time.Time
	UnknownFormat bool
	Held, Waiting int
	Holders       []Participant // in the order of their fences
	Waiters       []Participant
	Reserved      time.Duration
	Stamp         int64 // the reservation's
}

// Participant is a process that holds a key or waits for it; see core.Participant.
type Participant struct {
	Locker, Host string
	PID, Limit   int
	Name, ID     string
	TTL          time.Duration
	// For holders only.
	Fence     int64
	Since     time.Time
	Remaining time.Duration
}

const (
	inspectHolders   = 1000
	listParticipants = 10
	// One List reads at most this many times as many names as keys are wanted: most names may not be of keys.
	listScans = 10
)

func (d *deployment) Inspect(ctx context.Context, key string) (Info, error) {
	val, err := d.admin(ctx, "inspect", key, inspectScript, false, inspectHolders, maxQueue)
	if err != nil {
		return Info{}, err
	}
	info, err := parseInspect(key, val)
	if err != nil {
		return info, Unavailable("inspect", key, err)
	}
	return info, nil
}

// Force is not sent again after a lost reply: the second reply would be that there is no such holder.
func (d *deployment) Force(ctx context.Context, key string, fence int64) (first int64, err error) {
	val, err := d.admin(ctx, "force release", key, forceScript, true, "", fence)
	if err != nil {
		return 0, err
	}
	first, ok := val.(int64)
	if !ok {
		return 0, Unavailable("force release", key, errShape)
	}
	return first, nil
}

func (d *deployment) Reserve(ctx context.Context, key string, req ReserveRequest) (reply ReserveReply, err error) {
	span, b := req.Span.Milliseconds(), &bound{clock: &d.batcher(RecordName(d.prefix, key)).clock, wait: d.replyWithin}
	val, err := d.admin(ctx, "reserve", key, reserveScript, false, "", span, b, req.Watch, req.Fence)
	if val != nil && (result{val: val, clock: b.clock, written: b.written}).late() {
		val, err = d.admin(ctx, "reserve", key, reserveScript, false, "", span, 0, req.Watch, req.Fence)
	}
	if err != nil {
		return reply, err
	}
	n, err := integers(val, 2)
	if err != nil {
		return reply, Unavailable("reserve", key, err)
	}
	return ReserveReply{Stamp: n[0], Held: n[1] == 1}, nil
}

func (d *deployment) Unreserve(ctx context.Context, key string, stamp int64) (ended bool, err error) {
	val, err := d.admin(ctx, "unreserve", key, unreserveScript, false, "", stamp)
	return val != int64(0), err
}

// admin runs a script for a caller that waits for it; see command for noRetry.
func (d *deployment) admin(ctx context.Context, op, key string, s *luascript.Script, noRetry bool, args ...any) (any, error) {
	if err := ValidateKey(key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, CallerGone(ctx, op, key)
	}
	if d.life.Closed() {
		return nil, Closed(op, key)
	}
	cmd := d.command(ctx, s, noRetry, RecordName(d.prefix, key), args...)
	r, _, err := d.ask(ctx, op, cmd, ReplyTimeout, nil)
	if err != nil {
		return nil, err
	}
	d.recycle(cmd)
	if r.err != nil {
		return nil, Unavailable(op, key, r.err)
	}
	return r.val, nil
}

func (d *deployment) List(ctx context.Context, cursor string, count int) (infos []Info, next string, err error) {
	at, err := d.nodesFrom(ctx, cursor)
	if err != nil {
		return nil, "", err
	}
	for looked := 0; looked < listScans*count && (looked < count || len(infos) == 0); {
		var records []string
		n := min(count, scanAtOnce)
		err := d.step(ctx, func() (busy time.Duration, err error) {
			records, busy, err = at.next(ctx, RecordName(d.prefix, ""), n)
			return busy, err
		})
		for part := range slices.Chunk(records, inspectAtOnce) {
			if err == nil {
				err = d.step(ctx, func() (busy time.Duration, err error) {
					infos, busy, err = d.inspectAll(ctx, part, infos)
					return busy, err
				})
			}
		}
		if err != nil {
			return nil, "", listFailed(ctx, err)
		}
		looked += n
		if next = at.cursor(); next == "" {
			break
		}
	}
	return infos, next, nil
}

func listFailed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("core: list: %w", ctxerr.Of(ctx))
	case errors.Is(err, lifecycle.ErrClosed):
		return fmt.Errorf("core: list: %w", err)
	}
	return fmt.Errorf("core: list: %w: %w", ErrUnavailable, err)
}

// inspectAll appends reports on keys to infos, except for those that are free, and returns for how long Redis worked.
func (d *deployment) inspectAll(ctx context.Context, records []string, infos []Info) (all []Info, busy time.Duration, err error) {
	var first, last time.Time // by the clock of the server, which has all of them
	calls := make([]*luascript.Call, len(records))
	for i, record := range records {
		call := inspectScript.Call(ctx, append(inspectScript.Args(nil, 1), record, listParticipants, listParticipants), false)
		calls[i] = &call
	}
	_ = luascript.Pipeline(ctx, d.rdb, calls) // each call has its own error
	for i, record := range records {
		val, err := calls[i].Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			continue // not a record
		}
		var info Info
		if err == nil {
			info, err = parseInspect(KeyOf(d.prefix, record), val)
		}
		if err != nil {
			return nil, 0, err
		}
		if last = info.At; first.IsZero() {
			first = last
		}
		if val.([]any)[7] != noRecord && (info.Held > 0 || info.Waiting > 0 || info.Reserved > 0) {
			infos = append(infos, info)
		}
	}
	return infos, last.Sub(first) + inspectTakes, nil
}

// scan is a position in a scan over all primaries, in the order of their addresses. A cursor is
// Redis's own, and on a Cluster the node's address after an @.
type scan struct {
	nodes []redis.Cmdable // from the present one on
	addrs []string        // of a Cluster's; else nil
	at    uint64
}

// nodesFrom finds the position of a cursor.
func (d *deployment) nodesFrom(ctx context.Context, cursor string) (*scan, error) {
	invalid := fmt.Errorf("core: list: %w", ErrInvalidCursor)
	digits, addr, _ := strings.Cut(cursor, "@")
	at, err := strconv.ParseUint(digits, 10, 64)
	if cursor != "" && (err != nil || strconv.FormatUint(at, 10) != digits) {
		return nil, invalid
	}
	if d.cluster == nil {
		if strings.Contains(cursor, "@") || cursor == "0" {
			return nil, invalid
		}
		return &scan{nodes: []redis.Cmdable{d.rdb}, at: at}, nil
	}
	var mu sync.Mutex
	nodes := map[string]redis.Cmdable{}
	err = d.cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes[node.Options().Addr] = node
		return nil
	})
	if err != nil {
		return nil, listFailed(ctx, err)
	}
	s := &scan{at: at}
	for a := range nodes {
		if a >= addr {
			s.addrs = append(s.addrs, a)
		}
	}
	slices.Sort(s.addrs)
	if len(s.addrs) == 0 || cursor != "" && s.addrs[0] != addr {
		return nil, invalid
	}
	for _, a := range s.addrs {
		s.nodes = append(s.nodes, nodes[a])
	}
	return s, nil
}

// next returns the next records, whose names begin with prefix, and advances. It also returns for how long Redis worked.
func (s *scan) next(ctx context.Context, prefix string, count int) (records []string, busy time.Duration, err error) {
	var found *redis.ScanCmd
	busy = timed(ctx, s.nodes[0], func(pipe redis.Pipeliner) {
		found = pipe.Scan(ctx, s.at, inGlob.Replace(prefix)+"*", int64(count))
	})
	names, next, err := found.Result()
	if err != nil {
		return nil, busy, err
	}
	if s.at = next; next == 0 {
		s.nodes = s.nodes[1:]
		if s.addrs != nil {
			s.addrs = s.addrs[1:]
		}
	}
	records = names[:0]
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if ValidateKey(name[len(prefix):]) == nil {
			records = append(records, name)
		}
	}
	return records, busy, nil
}

func (s *scan) cursor() string {
	switch {
	case len(s.nodes) == 0:
		return ""
	case s.addrs == nil:
		return strconv.FormatUint(s.at, 10)
	default:
		return strconv.FormatUint(s.at, 10) + "@" + s.addrs[0]
	}
}

// inGlob escapes a text so that a pattern matches just that.
var inGlob = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)

// noRecord is what inspect.lua replies for a HASH that no version of perkey wrote.
const noRecord = int64(2)

// parseInspect reads the reply of inspect.lua. It leaves out what does not look like a holder.
func parseInspect(key string, val any) (info Info, err error) {
	items, ok := val.([]any)
	if !ok || len(items) != 8 {
		return info, errShape
	}
	n, err := integers(items[:3], 3)
	holders, ok := items[3].([]any)
	waiters, also := items[4].([]any)
	if err != nil || !ok || !also {
		return info, errors.Join(errShape, err)
	}
	info = Info{Key: key, At: time.UnixMicro(n[0]), Held: int(n[1]), Waiting: int(n[2])}
	if ends, _ := items[5].(int64); ends > 0 {
		info.Reserved = time.UnixMilli(ends).Sub(info.At)
		info.Stamp, _ = items[6].(int64)
	}
	info.UnknownFormat = items[7] != int64(0)
	for _, item := range holders {
		s, _ := item.(string)
		f := strings.SplitN(s, " ", 4)
		if len(f) < 3 {
			continue
		}
		ends, err := strconv.ParseInt(f[1], 10, 64)
		first, _, _ := strings.Cut(f[2], "-") // a downgraded holder has a last one too
		fence, err2 := strconv.ParseInt(first, 10, 64)
		if err != nil || err2 != nil {
			continue
		}
		h := participantOf(f[0], strings.Join(f[3:], ""))
		h.Fence, h.Since, h.Remaining = fence, time.UnixMicro(min(fence, n[0])), -1
		if ends > 0 {
			h.Remaining = max(time.UnixMilli(ends).Sub(info.At), 0)
		}
		info.Holders = append(info.Holders, h)
	}
	slices.SortFunc(info.Holders, func(a, b Participant) int { return cmp.Compare(a.Fence, b.Fence) })
	for _, item := range waiters {
		s, _ := item.(string)
		who, what, _ := strings.Cut(s, " ")
		info.Waiters = append(info.Waiters, participantOf(who, what))
	}
	return info, nil
}

// participantOf reads LIMIT:LOCKER and what Describe wrote.
func participantOf(who, what string) Participant {
	digits, locker, _ := strings.Cut(who, ":")
	limit, _ := strconv.Atoi(digits)
	p := Participant{Locker: locker, Limit: limit}
	if parts := strings.Split(locker, "/"); len(parts) == 3 {
		p.Host = parts[0]
		p.PID, _ = strconv.Atoi(parts[1])
	}
	p.Name, p.ID, p.TTL = readWhat(what)
	return p
}

func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}
