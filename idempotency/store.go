package idempotency

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ctxerr"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/keyring"
	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Errors of a Store, beside core.ErrUnavailable and the error of the caller's ctx.
var (
	// ErrMismatch: the key was used for work with another fingerprint.
	ErrMismatch = errors.New("the idempotency key was used for other work")
	// ErrStaleFence: a holder with a greater fence has begun the work. The caller's lease is lost,
	// whether or not it has noticed.
	ErrStaleFence = errors.New("a later holder has begun the work")
)

const (
	// DefaultTTL is how long a record is remembered, unless WithTTL says otherwise.
	DefaultTTL = 24 * time.Hour
	// MinTTL bounds WithTTL from below, and MaxTTL from above.
	MinTTL = time.Second
	// MaxTTL is the longest TTL.
	MaxTTL = 90 * 24 * time.Hour

	// commandTimeout bounds each command, for clients whose commands are bounded by their ctx alone.
	commandTimeout = 10 * time.Second
)

var (
	//go:embed lua
	scripts embed.FS

	beginScript  = luascript.Load(scripts, "begin")
	finishScript = luascript.Load(scripts, "finish")
	parkedScript = luascript.Load(scripts, "parked")
	forgetScript = luascript.Load(scripts, "forget")
)

// Store keeps records. It is safe for concurrent use, has no goroutines, and needs no
// closing. The zero Store is not useful: use New.
type Store struct {
	rdb    redis.UniversalClient
	prefix string
	ttl    time.Duration

	sealer   *keyring.Sealer // nil: outcomes are stored as they are
	observer Observer        // nil: nobody is told
}

func init() { ident.StorePrefix = func(s any) string { return s.(*Store).prefix } }

// Option configures a Store.
type Option func(*Store) error

// WithPrefix sets the prefix of the records' keys in Redis. Default "perkey"; it must be that of
// core.WithPrefix: httplock.WithIdempotency refuses another one.
func WithPrefix(prefix string) Option {
	return func(s *Store) error {
		if !ident.ValidPrefix(prefix) {
			return invalid("WithPrefix(%q): want 1 to %d bytes, without braces, white space and control bytes", prefix, ident.MaxPrefixLen)
		}
		s.prefix = prefix
		return nil
	}
}

// WithTTL sets how long a record is remembered after it was begun, parked or finished last. It should be longer than
// clients keep trying, and longer than the work takes. Default 24 h; 1 s to 90 days.
func WithTTL(ttl time.Duration) Option {
	return func(s *Store) error {
		if ttl < MinTTL || ttl > MaxTTL {
			return invalid("WithTTL(%s): want %s to %s", ttl, MinTTL, MaxTTL)
		}
		s.ttl = ttl
		return nil
	}
}

// New returns a Store on rdb, which the caller closes. It does not talk to Redis. Its error wraps
// core.ErrInvalidOption.
func New(rdb redis.UniversalClient, opts ...Option) (*Store, error) {
	if nilcheck.IsNil(rdb) {
		return nil, invalid("New: the redis client is nil")
	}
	s := &Store{rdb: rdb, prefix: ident.DefaultPrefix, ttl: DefaultTTL}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalid("New: an option is nil")
		}
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Work identifies one piece of work.
type Work struct {
	// Name identifies the record: the client's key, and everything that tells it from the same key of others. It
	// becomes part of a key in Redis, so it should be a hash: the client's key is a secret.
	Name string
	// Fingerprint is a hash of what was requested. Only Lookup takes an empty one, which matches every record.
	Fingerprint string
}

// NameOf returns the Name of a request's Work, as package httplock makes it. route is httplock.Exchange.Name, such as
// "POST /orders/{id}", or method and path if that is empty; principal is what the principal function returned, empty
// if there is none; key is the Idempotency-Key without quotes.
func NameOf(route, principal, key string) string {
	return ident.Hash([]byte(route), []byte(principal), []byte(key))
}

// Record is what is known of a Work.
type Record struct {
	// Found reports that there is a record.
	Found bool
	// Begun reports that a holder began the work. It may have died since.
	Begun bool
	// Outcome is what Finish stored. Nil: the work was not finished.
	Outcome []byte
	// Ticket is the ticket under which the work was parked last. Its ID is empty if it never was.
	Ticket core.Ticket
}

// Begin records that the work runs now, under the fence of the caller's lease, or returns its stored outcome. A nil
// outcome with a nil error: the caller is to run the work, and keeps the lease until after Finish. Begin may be
// called again under the same fence. It blocks for one round trip.
func (s *Store) Begin(ctx context.Context, w Work, fence int64) (outcome []byte, err error) {
	reply, err := s.run(ctx, "begin", beginScript, w, fence, s.ttl.Milliseconds())
	return s.began(ctx, w, reply, err)
}

func (s *Store) began(ctx context.Context, w Work, reply []string, failed error) (outcome []byte, err error) {
	done := EventBegun
	defer func() { s.observe(ctx, w.Name, done, err) }()
	if failed != nil || len(reply) < 2 || reply[1] == "" {
		return nil, failed
	}
	done = EventReplayed
	if outcome, err = s.open(w, reply[1]); err != nil {
		return nil, fmt.Errorf("idempotency: begin: the outcome %w", err)
	}
	return outcome, nil
}

// Finish stores the outcome of work that was begun under the same fence. outcome must not be empty.
// Finish may be called again. It blocks for one round trip.
func (s *Store) Finish(ctx context.Context, w Work, fence int64, outcome []byte) error {
	_, err := s.run(ctx, "finish", finishScript, w, fence, s.ttl.Milliseconds(), s.seal(w, outcome))
	s.observe(ctx, w.Name, EventStored, err)
	return err
}

// Parked records that the work was parked, so that it need not be parked again before
// the ticket expires. Finished work is left as it is. It blocks for one round trip.
func (s *Store) Parked(ctx context.Context, w Work, t core.Ticket) error {
	_, err := s.run(ctx, "park", parkedScript, w, s.ttl.Milliseconds(), t.ID, t.Queue, t.ExpiresAt.UnixMilli())
	s.observe(ctx, w.Name, EventParked, err)
	return err
}

// Lookup returns the record of the work. Without a fingerprint in w, the stored fingerprint is not
// compared. If the outcome cannot be opened, the error matches ErrSealed, and the rest of the
// Record is returned with it. It blocks for one round trip.
func (s *Store) Lookup(ctx context.Context, w Work) (r Record, err error) {
	if w.Fingerprint != "" {
		defer func() { s.observe(ctx, w.Name, r.event(), err) }()
	}
	bounded, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	found, err := s.rdb.HMGet(bounded, s.name(w.Name), "fingerprint", "outcome", "ticket", "queue", "until", "fence").Result()
	if err != nil {
		return r, s.failed(bounded, "lookup", err)
	}
	text := func(i int) string { v, _ := found[i].(string); return v }
	was := text(0)
	if was != "" && w.Fingerprint != "" && was != w.Fingerprint {
		return r, fmt.Errorf("idempotency: lookup: %w", ErrMismatch)
	}
	r.Found, r.Begun, w.Fingerprint = was != "", text(5) != "", was
	if until, err := strconv.ParseInt(text(4), 10, 64); err == nil {
		r.Ticket = core.Ticket{ID: text(2), Queue: text(3), ExpiresAt: time.UnixMilli(until)}
	}
	if outcome := text(1); outcome != "" {
		if r.Outcome, err = s.open(w, outcome); err != nil {
			return r, fmt.Errorf("idempotency: lookup: the outcome %w", err)
		}
	}
	return r, nil
}

// Forget removes a record, and reports whether there was one: the work runs again if it is requested again. Work that
// is under way is not stopped: its Finish creates the record again. It blocks for one round trip.
func (s *Store) Forget(ctx context.Context, name string) (forgotten bool, err error) {
	return s.forget(ctx, name, func(ctx context.Context) (int64, error) {
		return s.rdb.Del(ctx, s.name(name)).Result()
	})
}

// ForgetIf is Forget for a record that is still as Lookup returned it: parked, begun or with an outcome. It reports
// false, and removes nothing, if there is none or it has changed. After an error it may have been removed.
func (s *Store) ForgetIf(ctx context.Context, name string, seen Record) (forgotten bool, err error) {
	if !seen.Found {
		return false, nil
	}
	flag := map[bool]string{false: "0", true: "1"}
	return s.forget(ctx, name, func(ctx context.Context) (int64, error) {
		args := append(forgetScript.Args(nil, 1), s.name(name), flag[seen.Begun], flag[seen.Outcome != nil])
		call := forgetScript.Call(ctx, args, true) // sent again after a lost reply it would find none
		call.Send(ctx, s.rdb)
		return call.Int64()
	})
}

func (s *Store) forget(ctx context.Context, name string, remove func(context.Context) (int64, error)) (forgotten bool, err error) {
	var done EventKind
	defer func() { s.observe(ctx, name, done, err) }()
	bounded, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	n, err := remove(bounded)
	if err != nil {
		return false, s.failed(bounded, "forget", err)
	}
	if n > 0 {
		done = EventForgotten
	}
	return n > 0, nil
}

// run calls a script, and returns what it said if that is not a refusal.
func (s *Store) run(ctx context.Context, op string, script *luascript.Script, w Work, args ...any) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return s.said(ctx, op, script.Run(ctx, s.rdb, []string{s.name(w.Name)}, append([]any{w.Fingerprint}, args...)...))
}

func (s *Store) said(ctx context.Context, op string, cmd *redis.Cmd) ([]string, error) {
	reply, err := cmd.StringSlice()
	if err != nil {
		return nil, s.failed(ctx, op, err)
	}
	said := ""
	if len(reply) > 0 {
		said = reply[0]
	}
	switch said {
	case "ok":
		return reply, nil
	case "mismatch":
		return nil, fmt.Errorf("idempotency: %s: %w", op, ErrMismatch)
	case "stale_fence":
		return nil, fmt.Errorf("idempotency: %s: %w", op, ErrStaleFence)
	default:
		return nil, fmt.Errorf("idempotency: %s: %w: %w", op, core.ErrUnavailable, luascript.ErrReply)
	}
}

// name is the record's. The empty braces keep braces in the name from choosing a slot.
func (s *Store) name(work string) string { return s.prefix + ":idem{}:" + work }

func (s *Store) failed(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fmt.Errorf("idempotency: %s: %w", op, ctxerr.Of(ctx))
	}
	return fmt.Errorf("idempotency: %s: %w: %w", op, core.ErrUnavailable, err)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("idempotency: %w: %s", core.ErrInvalidOption, fmt.Sprintf(format, args...))
}
