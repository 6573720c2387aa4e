package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// ErrNotAudited means that a change could not be recorded, so it was not made. The error wraps the
// cause. If the reply of Redis was lost, the Audit may still have the change, without an Outcome.
var ErrNotAudited = errors.New("ops: the audit cannot be written, so nothing was changed")

// ErrInvalidArgument means that an argument is invalid. Nothing was changed.
var ErrInvalidArgument = errors.New("ops: invalid argument")

const (
	// auditLength is how many entries the audit has at least before the oldest are forgotten, some two for each change.
	auditLength  = 10_000
	maxAuditPage = 1000
	// maxAuditText bounds each text of an entry, in bytes: the longest lock key fits.
	maxAuditText = 512
	auditTimeout = 2 * time.Second
)

// Action is what an operator does.
type Action string

// The Actions.
const (
	ActionUnlock  Action = "unlock"
	ActionPause   Action = "pause"
	ActionResume  Action = "resume"
	ActionCancel  Action = "cancel"
	ActionRedrive Action = "redrive"
	ActionPurge   Action = "purge"
	ActionForget  Action = "forget"
)

// Change is a change by an operator, as the Audit has it.
type Change struct {
	// ID and At are set by Record. At is by the clock of Redis.
	ID string
	At time.Time
	// Action is what the operator does, to Key, or to Queue and Message. A field that does not
	// apply is empty: an action on many messages has no Message.
	Action              Action
	Key, Queue, Message string
	// Detail describes the change, and Seen what the operator saw before, both as text for people.
	Detail, Seen string
	// Who changes it, and Why.
	Who, Why string
	// Outcome is how it ended, as text for people. Empty: not known. The change may be under way,
	// its process may have died, or the reply of Redis to its record was lost, and it was not made.
	Outcome string
}

// Audit records each change that an operator makes, before it is made, and then how it ended: in a stream in Redis,
// <prefix>:ops:audit, which has the last 10,000 entries or more, of up to two for each change, and with log/slog. It is safe for concurrent use, and has nothing to close.
//
// Texts are cut to 512 bytes. Nothing in it lets its reader release or use a lease.
type Audit struct {
	rdb    redis.UniversalClient
	prefix string
	log    *slog.Logger
}

// NewAudit makes an Audit on rdb, which stays the caller's to close. prefix is that of the locks (core.WithPrefix); empty is the default.
// A nil log is slog.Default. Its error wraps core.ErrInvalidOption.
func NewAudit(rdb redis.UniversalClient, prefix string, log *slog.Logger) (*Audit, error) {
	if nilcheck.IsNil(rdb) {
		return nil, fmt.Errorf("ops: %w: NewAudit: the redis client is nil", core.ErrInvalidOption)
	}
	if prefix == "" {
		prefix = ident.DefaultPrefix
	}
	if !ident.ValidPrefix(prefix) {
		return nil, fmt.Errorf("ops: %w: NewAudit: prefix %q: want 1 to %d bytes, without braces, white space and control bytes", core.ErrInvalidOption, prefix, ident.MaxPrefixLen)
	}
	if log == nil {
		log = slog.Default()
	}
	return &Audit{rdb, prefix, log}, nil
}

func (a *Audit) key() string { return a.prefix + ":ops:audit" }

// Record records a change that is about to be made, and sets its ID and At. Who, Why and Action are needed, else the error
// is ErrInvalidArgument. After any other error, ErrNotAudited, the change must not be made.
func (a *Audit) Record(ctx context.Context, c *Change) error {
	if c.Who == "" || c.Why == "" || c.Action == "" {
		return fmt.Errorf("%w: an audited change says who makes it, and why", ErrInvalidArgument)
	}
	id, err := a.add(ctx, "action", string(c.Action), "key", c.Key, "queue", c.Queue, "message", c.Message,
		"detail", c.Detail, "seen", c.Seen, "who", c.Who, "why", c.Why)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotAudited, err)
	}
	c.ID, c.At = id, timeOfEntry(id)
	a.log.LogAttrs(ctx, slog.LevelInfo, "perkey: an operator makes a change", append(c.attrs(), slog.String("seen", c.Seen), slog.String("why", c.Why))...)
	return nil
}

// Done records how a recorded change ended. If Redis does not take it, the change has no Outcome.
func (a *Audit) Done(ctx context.Context, c *Change) {
	_, err := a.add(context.WithoutCancel(ctx), "of", c.ID, "outcome", c.Outcome)
	attrs := append(c.attrs(), slog.String("outcome", c.Outcome))
	if err != nil {
		attrs = append(attrs, slog.Any("not_audited", err))
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "perkey: an operator's change has ended", attrs...)
}

func (c *Change) attrs() (attrs []slog.Attr) {
	for _, one := range []struct{ name, value string }{
		{"id", c.ID}, {"action", string(c.Action)}, {"key", c.Key}, {"queue", c.Queue}, {"message", c.Message}, {"detail", c.Detail}, {"who", c.Who},
	} {
		if one.value != "" {
			attrs = append(attrs, slog.String(one.name, one.value))
		}
	}
	return attrs
}

// once is a command that go-redis does not send again after its reply was lost: the audit would have it twice.
type once struct{ *redis.StringCmd }

func (once) NoRetry() bool { return true }

// add adds an entry, of the fields that are not empty.
func (a *Audit) add(ctx context.Context, pairs ...string) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	args := []any{"xadd", a.key(), "maxlen", "~", auditLength, "*"}
	for i := 0; i < len(pairs); i += 2 {
		if text := pairs[i+1]; text != "" {
			args = append(args, pairs[i], text[:min(len(text), maxAuditText)])
		}
	}
	cmd := once{redis.NewStringCmd(ctx, args...)}
	_ = a.rdb.Process(ctx, cmd)
	return cmd.Result()
}

// List returns the latest changes, at most n of them, 1 to 1000, the latest first. It takes a round trip, or a few.
func (a *Audit) List(ctx context.Context, n int) ([]Change, error) {
	if n < 1 || n > maxAuditPage {
		return nil, fmt.Errorf("%w: the audit lists 1 to %d changes, not %d", ErrInvalidArgument, maxAuditPage, n)
	}
	var all []Change
	outcomes := map[string]string{} // which come before their changes, since the latest entry does
	for last := "+"; ; {
		entries, err := a.rdb.XRevRangeN(ctx, a.key(), last, "-", int64(2*n)).Result()
		if err != nil {
			return nil, fmt.Errorf("ops: list the audit: %w: %w", core.ErrUnavailable, err)
		}
		for _, e := range entries {
			text := func(name string) string { s, _ := e.Values[name].(string); return s }
			if of := text("of"); of != "" {
				outcomes[of] = text("outcome")
				continue
			}
			all = append(all, Change{
				ID: e.ID, At: timeOfEntry(e.ID), Action: Action(text("action")), Key: text("key"), Queue: text("queue"), Message: text("message"),
				Detail: text("detail"), Seen: text("seen"), Who: text("who"), Why: text("why"), Outcome: outcomes[e.ID],
			})
			if len(all) == n {
				return all, nil
			}
		}
		if len(entries) < 2*n {
			return all, nil
		}
		last = "(" + entries[len(entries)-1].ID
	}
}

// timeOfEntry is when an entry was added, by its ID.
func timeOfEntry(id string) time.Time {
	ms, _, _ := strings.Cut(id, "-")
	n, _ := strconv.ParseInt(ms, 10, 64)
	return time.UnixMilli(n)
}
