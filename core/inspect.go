package core

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

	"github.com/perkey-go/perkey/internal/ctxerr"
	"github.com/perkey-go/perkey/internal/luascript"
)

// KeyInfo is what Redis knows of a key at one moment.
type KeyInfo struct {
	Key string
	// At is the server's clock when it looked.
	At time.Time
	// Foreign reports that the key's record was not written by this version of perkey: a
	// newer one has the key, or something else is stored under its name. It counts as held,
	// by one, and the rest is not known. See docs/protocol.md, "Format versions".
	Foreign bool
	// Mode is how the key is held; empty when it is free, or Foreign.
	Mode Mode
	// Held is how many hold the key. Where that is more than len(Holders) it can
	// include some whose leases have just ended.
	Held int
	// Holders are those that hold the key, in the order of their fences: 1,000 at
	// most, or 10 from List.
	Holders []Holder
	// Waiting is how many lockers wait for the key: each once for each mode, however
	// many of its calls wait.
	Waiting int
	// Waiters are the lockers that wait, in the order in which they will be served:
	// all of them, or the first 10 from List.
	Waiters []Waiter
	// Reserved is how long the key is still reserved for parked work, which goes before fresh
	// calls; zero if it is not.
	Reserved time.Duration

	stamp int64 // of the reservation
}

// Free reports whether nobody holds the key. If lockers wait for it then all the
// same, the first of them is about to get it, unless the key is reserved.
func (k *KeyInfo) Free() bool { return k.Held == 0 }

// Mode is how a key is held, or wanted.
type Mode string

// The modes that the options of Acquire choose between.
const (
	ModeExclusive Mode = "exclusive"
	ModeShared    Mode = "shared"
	ModeCounted   Mode = "counted"
)

func modeOf(limit int) Mode {
	switch limit {
	case exclusive:
		return ModeExclusive
	case shared:
		return ModeShared
	default:
		return ModeCounted
	}
}

// Party is a process that holds a key or waits for it, and what for.
type Party struct {
	// Locker names the Locker, and Host and PID its process.
	Locker, Host string
	PID          int
	Mode         Mode
	// Limit is how many may hold the key together: 1 if exclusive, 0 without limit.
	Limit int
	// Name and ID are what Named or the Call said, as far as it is stored: 100 bytes
	// of each.
	//
	// A call that waited for the key carries what the first of its process's waiting
	// calls said when it last asked Redis. An exclusive hold that was passed on to
	// another call of the same process still shows the first one's.
	Name, ID string
}

// Holder is one that holds a key. A lease that was resumed elsewhere is shown as
// that of the process that took the key.
type Holder struct {
	Party
	// Fence is that of the grant. An exclusive grant that was handed over within its
	// process has a greater one by now, also after a Downgrade; ForceRelease knows it by either.
	Fence int64
	// Since is when the key was granted, by the server's clock: fences are made of
	// it. It can be late if the server's clock was set back.
	Since time.Time
	// Remaining is what is left of the lease, unless it is renewed.
	Remaining time.Duration
}

// Waiter is a locker that waits for a key.
type Waiter struct{ Party }

// KeyPage is a part of the keys in use.
type KeyPage struct {
	Keys []*KeyInfo
	// Next is the cursor for the next part; empty after the last one.
	Next string
}

const (
	inspectHolders = 1000
	listParties    = 10

	// MaxListCount is the greatest count that List takes.
	MaxListCount = 1000
	// How often one List looks for keys at most, where most names in Redis are not
	// of keys.
	listScans = 10

	// adminPatience is how long a call waits for Redis whose ctx sets no bound.
	adminPatience = 15 * time.Second
)

// Inspect reports who holds key, who waits for it, whatever Locker they are of, and
// whether it is reserved. It blocks for one round trip, and no longer than ctx allows. Nothing in its
// answer lets its reader release or use a lease.
func (l *Locker) Inspect(ctx context.Context, key string) (*KeyInfo, error) {
	d, err := l.deployment("inspect")
	if err != nil {
		return nil, err
	}
	val, err := d.admin(ctx, "inspect", key, inspectScript, false, inspectHolders, maxQueue)
	if err != nil {
		return nil, err
	}
	info, err := parseInspect(key, val)
	if err != nil {
		return nil, unavailable("inspect", key, err)
	}
	return info, nil
}

// ForceRelease takes the key from the holder that has the fence, whoever that is,
// and gives it to the next that waits. It reports false if no holder has the fence any
// more: a later holder is never touched. The fence is one that Inspect, an Observer
// or the lease itself showed; of an exclusive grant that was handed over within its
// process, and perhaps downgraded then, any of its fences will do, and whichever call of it has the key now
// loses it.
//
// The holder is told by a message: its lease's context ends, with a cause that wraps
// ErrLeaseLost, but the next holder may have the key a moment before. Until the message
// arrives the holder's process may hand the key over to another call of its own, within 50 ms
// of the grant; that lease ends by the message too. If the
// message is lost, or the lease was resumed by another process, it ends at its next
// renewal. The work itself may go on: only a fence keeps it from its store.
//
// It blocks for one round trip, and no longer than ctx allows. After an error the
// key may have been released.
func (l *Locker) ForceRelease(ctx context.Context, key string, fence int64) (bool, error) {
	d, err := l.deployment("force release")
	if err != nil {
		return false, err
	}
	// Sent again after a lost reply, it would answer that there is no such holder.
	val, err := d.admin(ctx, "force release", key, forceScript, true, "", fence)
	if err != nil {
		return false, err
	}
	first, ok := val.(int64)
	if !ok {
		return false, unavailable("force release", key, errShape)
	}
	if first != 0 {
		l.taken(key, first, forced) // if it was this Locker's, which may not be subscribed
	}
	return first != 0, nil
}

// taken ends the holds of this Locker on a grant that is over in Redis.
func (l *Locker) taken(key string, fence int64, why string) {
	for _, h := range l.leases.of(key, fence) {
		_ = l.leases.lose(h, why)
	}
}

// admin runs a script for a caller who waits for it, with once as in command.
func (d *deployment) admin(ctx context.Context, op, key string, s *luascript.Script, once bool, args ...any) (any, error) {
	if err := ValidateKey(key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, callerGone(ctx, op, key)
	}
	if d.closed() {
		return nil, fmt.Errorf("core: %s %q: %w", op, key, ErrClosed)
	}
	cmd := d.command(ctx, s, once, recordName(d.prefix, key), args...)
	cmd.key = key
	r, _, err := d.ask(ctx, op, cmd, adminPatience, nil)
	if err != nil {
		return nil, err
	}
	d.recycle(cmd)
	if r.err != nil {
		return nil, unavailable(op, key, r.err)
	}
	return r.val, nil
}

// List reports on keys that are held, waited for or reserved: on about count of them, 1 to
// 1,000, beginning with an empty cursor and then with each page's Next. Keys that
// are in use from the first page to the last are on one of them, others may be; a
// key can be on two. A page can be short, or empty, and not be the last. What else is
// stored under the prefix is passed over.
//
// Its work is bounded: it uses SCAN, and reports on up to 10 holders and 10 waiters
// of each key. It blocks for as long as that takes, or until go-redis gives up.
func (l *Locker) List(ctx context.Context, cursor string, count int) (*KeyPage, error) {
	if count < 1 || count > MaxListCount {
		return nil, fmt.Errorf("core: %w: List: count %d: want 1 to %d", ErrInvalidOption, count, MaxListCount)
	}
	if l.closed() {
		return nil, fmt.Errorf("core: list: %w", ErrClosed)
	}
	d, err := l.deployment("list")
	if err != nil {
		return nil, err
	}
	at, err := d.nodesFrom(ctx, cursor)
	if err != nil {
		return nil, err
	}
	page := &KeyPage{}
	for range listScans {
		keys, err := at.next(ctx, recordName(l.prefix, ""), count)
		if err == nil {
			page.Keys, err = d.inspectAll(ctx, keys)
		}
		if err != nil {
			return nil, listFailed(ctx, err)
		}
		page.Next = at.cursor()
		if page.Next == "" || len(page.Keys) > 0 {
			break
		}
	}
	return page, nil
}

func listFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("core: list: %w", ctxerr.Of(ctx))
	}
	return fmt.Errorf("core: list: %w: %w", ErrUnavailable, err)
}

// inspectAll reports on keys, but for those that are free.
func (d *deployment) inspectAll(ctx context.Context, records []string) ([]*KeyInfo, error) {
	var infos []*KeyInfo
	calls := make([]*luascript.Call, len(records))
	for i, record := range records {
		call := inspectScript.Call(ctx, append(inspectScript.Args(nil, 1), record, listParties, listParties), false)
		calls[i] = &call
	}
	_ = luascript.Pipeline(ctx, d.rdb, calls) // each call has its own error
	for i, record := range records {
		val, err := calls[i].Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			continue // the scan met it as a HASH
		}
		var info *KeyInfo
		if err == nil {
			info, err = parseInspect(keyOf(d.prefix, record), val)
		}
		switch {
		case err != nil:
			return nil, err
		case val.([]any)[7] == noRecord:
			continue
		case info.Held > 0 || info.Waiting > 0 || info.Reserved > 0:
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// scan is a place in a scan over all primaries, in the order of their addresses.
// A cursor is Redis's own, and on a Cluster the node's address after an @.
type scan struct {
	nodes []redis.Cmdable // from the present one on
	addrs []string        // of a Cluster's; else nil
	at    uint64
}

// nodesFrom finds the place that a cursor means.
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

// next returns the next records, whose names begin with prefix, and moves on.
func (s *scan) next(ctx context.Context, prefix string, count int) ([]string, error) {
	names, next, err := s.nodes[0].ScanType(ctx, s.at, inGlob.Replace(prefix)+"*", int64(count), "hash").Result()
	if err != nil {
		return nil, err
	}
	if s.at = next; next == 0 {
		s.nodes = s.nodes[1:]
		if s.addrs != nil {
			s.addrs = s.addrs[1:]
		}
	}
	records := names[:0]
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if ValidateKey(name[len(prefix):]) == nil {
			records = append(records, name)
		}
	}
	return records, nil
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

// inGlob writes a text so that a pattern means just that.
var inGlob = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)

// noRecord is what inspect.lua answers of a HASH that no version wrote.
const noRecord = int64(2)

// parseInspect reads the answer of inspect.lua. What does not look like a holder is
// passed over.
func parseInspect(key string, val any) (*KeyInfo, error) {
	items, ok := val.([]any)
	if !ok || len(items) != 8 {
		return nil, errShape
	}
	n, err := integers(items[:3], 3)
	holders, ok := items[3].([]any)
	waiters, also := items[4].([]any)
	if err != nil || !ok || !also {
		return nil, errors.Join(errShape, err)
	}
	info := &KeyInfo{Key: key, At: time.UnixMicro(n[0]), Held: int(n[1]), Waiting: int(n[2])}
	if ends, _ := items[5].(int64); ends > 0 {
		info.Reserved = time.UnixMilli(ends).Sub(info.At)
		info.stamp, _ = items[6].(int64)
	}
	info.Foreign = items[7] != int64(0)
	for _, item := range holders {
		s, _ := item.(string)
		f := strings.SplitN(s, " ", 4)
		if len(f) < 3 {
			continue
		}
		ends, err := strconv.ParseInt(f[1], 10, 64)
		first, _, _ := strings.Cut(f[2], "-") // of a downgraded one there is a last one too
		fence, err2 := strconv.ParseInt(first, 10, 64)
		if err != nil || err2 != nil {
			continue
		}
		h := Holder{
			Party: partyOf(f[0], strings.Join(f[3:], "")), Fence: fence,
			Since:     time.UnixMicro(min(fence, n[0])),
			Remaining: time.UnixMilli(ends).Sub(info.At),
		}
		info.Holders = append(info.Holders, h)
	}
	slices.SortFunc(info.Holders, func(a, b Holder) int { return cmp.Compare(a.Fence, b.Fence) })
	if len(info.Holders) > 0 {
		info.Mode = info.Holders[len(info.Holders)-1].Mode
	}
	for _, item := range waiters {
		s, _ := item.(string)
		who, what, _ := strings.Cut(s, " ")
		info.Waiters = append(info.Waiters, Waiter{partyOf(who, what)})
	}
	return info, nil
}

// partyOf reads LIMIT:LOCKER and what describe wrote.
func partyOf(who, what string) Party {
	digits, locker, _ := strings.Cut(who, ":")
	limit, _ := strconv.Atoi(digits)
	p := Party{Locker: locker, Mode: modeOf(limit), Limit: limit}
	if parts := strings.Split(locker, "/"); len(parts) == 3 {
		p.Host = parts[0]
		p.PID, _ = strconv.Atoi(parts[1])
	}
	name, id, _ := strings.Cut(what, ";")
	p.Name, p.ID = unescape(name), unescape(id)
	return p
}

func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}
