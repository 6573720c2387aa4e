package core

// Transfer of a lease to another process: [Lease.Token], [Lease.Detach] and [Locker.Resume].

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/trust"
)

// Token returns a text with which another process can hold the lease too; see [Locker.Resume]. It
// is empty if the lease has ended. It is up to 1,024 bytes of letters, digits, '-', '_' and '.', so
// that it fits into a header or a URL.
//
// It is a secret: with it and access to Redis, the key can be released.
//
// This process continues to hold the key, and to renew it, and so do others that resume the token,
// at the same time. They share the lease and its fence, and have to coordinate their work by other
// means. The first that releases it ends it for all: the contexts of the others end at their next
// renewal at the latest, a third of the TTL, which can be after the next holder got the key. So
// only one should release; one that is done earlier uses [Lease.Detach]. To give the key away
// altogether, use Detach instead of Token.
//
// A [Lease.Downgrade] makes an earlier token invalid. After Token the key is not handed over within
// this process any more: its next call asks Redis.
func (l *Lease) Token() string {
	if l == nil {
		return ""
	}
	if l.reentered != nil {
		return l.reentered.Token()
	}
	g := l.grant
	if !g.locker.leases.share(l) {
		return ""
	}
	return token{
		prefix: g.locker.prefix, key: g.key(), owner: g.token(),
		first: g.fence, used: int64(g.used), ttl: g.ttl,
	}.String()
}

// Detach ends this process's part in the lease without releasing the key, and returns the lease's
// token. The key stays held for its TTL, or longer if Extend said so, for the process that resumes
// the token. The lease's Context ends with a cause that wraps [ErrDetached], and nothing is renewed
// any more. Release does nothing afterwards. A [MinHold] no longer applies.
//
// It blocks for one round trip, and no longer than ctx allows. An error that wraps [ErrLeaseLost]
// means that the lease is lost; after any other error the lease is as it was.
func (l *Lease) Detach(ctx context.Context) (string, error) {
	if l == nil {
		return "", errNoLease
	}
	if l.reentered != nil {
		return l.reentered.Detach(ctx)
	}
	g, owner := l.grant, l.grant.locker
	if err := owner.leases.check(l); err != nil {
		return "", err
	}
	owned, err := g.extend(ctx, "detach", g.ttl)
	switch {
	case err != nil:
		return "", err
	case !owned:
		return "", owner.leases.lose(g, notOurs)
	}
	token := l.Token()
	if !owner.leases.detach(l) {
		return "", lost(l.Key(), loss{text: "it ended while it was being detached"})
	}
	l.cancel(fmt.Errorf("core: %q: %w", l.Key(), ErrDetached))
	owner.waiters.lost(g)
	owner.observer.OnReleased(l.Context(), Released{
		Key: l.Key(), Name: l.name, Fence: l.fence, Held: l.granted.Elapsed(time.Now()), Detached: true,
	})
	return token, nil
}

// Resume returns a Lease for a token of [Lease.Token] or [Lease.Detach], in any process, by a
// Locker on the same Redis and with the same prefix. It verifies that the token still holds the
// key. The Lease is like one of Acquire: it is renewed, and Release frees the key. Its fence is
// that of the lease that was transferred.
//
// The TTL and the mode are transferred; [MaxHold], [MinHold] and [Named] are not, and can be given
// to Resume. It blocks for one round trip, and no longer than ctx allows. Its error wraps
// [ErrInvalidToken] if this is not a token for this Locker, and [ErrLeaseLost] if the token does
// not hold its key any more. After any other error the token is good for another try, within its
// TTL.
func (l *Locker) Resume(ctx context.Context, token string, opts ...AcquireOption) (*Lease, error) {
	a := attempt{locker: l, ctx: ctx, start: time.Now(), resumed: true}
	err := errUnwound
	defer func() { a.report(err) }()
	err = a.resume(token, opts)
	return a.lease, err
}

func (a *attempt) resume(text string, opts []AcquireOption) error {
	l, ctx, o := a.locker, a.ctx, &a.opts
	t, err := parseToken(text)
	o.ttl, o.first, o.limit = t.ttl, l.firstLease, store.LimitOf(t.owner)
	invalid := o.apply(opts)
	a.call = Call{Key: t.key, Name: o.name, ID: o.id}
	if err != nil {
		return fmt.Errorf("core: resume: %w: %w", ErrInvalidToken, err)
	}
	if t.prefix != l.prefix {
		return fmt.Errorf("core: resume %q: %w: it is for the prefix %q", t.key, ErrInvalidToken, t.prefix)
	}
	if invalid != nil {
		return invalid
	}
	if o.limit != store.LimitOf(t.owner) || o.notify != nil || o.reserve > 0 {
		return fmt.Errorf("core: resume %q: %w: the key is held already: Shared, Counted and NotifyRelease come too late", t.key, ErrInvalidOption)
	}
	if ctx.Err() != nil {
		return store.CallerGone(ctx, "resume", t.key)
	}
	if !l.life.Open() {
		return store.Closed("resume", t.key)
	}
	sent, ttl := time.Now(), o.ttl
	if o.maxHold > 0 {
		ttl = min(ttl, o.maxHold)
	}
	a.record = store.RecordName(l.prefix, t.key)
	owned, waiting, err := l.store.Extend(ctx, "resume", a.record, t.owner, ttl)
	if err != nil {
		return err
	}
	if !owned {
		return lost(t.key, notOurs)
	}
	g := l.newGrant(a.record, t.owner, o.limit, t.first, sent, time.Now(), trust.Until(sent, ttl), o)
	g.used = int32(t.used)
	g.waiting.Store(waiting)
	g.transferred.Store(true)
	if !l.leases.add(g) {
		return store.Closed("resume", t.key)
	}
	taken, err := a.take(g, time.Now())
	if err == nil && !taken {
		err = store.Unavailable("resume", t.key, errors.New("the lease had ended when its reply arrived"))
	}
	return err
}

// released ends the other leases under a grant that was released, as far as they are known: those
// of this Locker, and by a message those of the Locker that took the key.
func (l *Locker) released(g *grant) {
	for _, other := range l.leases.of(g.key(), g.fence) {
		if other != g {
			_ = l.leases.lose(other, elsewhere)
		}
	}
	if owner := *g.owner; owner != l.id {
		l.life.Background(func() {
			l.store.TellReleased(l.life.Context(), owner, g.key(), g.fence)
		})
	}
}

// token is what is transferred. Its text is "pk1." and the base64 of its fields: strings with their
// length, numbers as varints, and a checksum, so that a text that was cut off or mistyped is not
// mistaken for a lease that was lost.
type token struct {
	prefix, key, owner string // owner is the owner token
	first              int64  // fence of the grant
	used               int64  // by how much the lease's fence is greater
	ttl                time.Duration
}

const (
	tokenVersion = "pk1."
	maxTokenLen  = 1024
)

var newerToken = regexp.MustCompile(`^pk([2-9]|[1-9][0-9]+)\.`)

// String writes the token.
func (t token) String() string {
	var b []byte
	for _, s := range []string{t.prefix, t.key, t.owner} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, n := range []int64{t.first, t.used, t.ttl.Milliseconds()} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return tokenVersion + base64.RawURLEncoding.EncodeToString(b)
}

// parseToken reads a token. It accepts what String writes, and nothing else. Its
// errors do not repeat the token.
func parseToken(text string) (t token, err error) {
	coded, ok := strings.CutPrefix(text, tokenVersion)
	switch {
	case len(text) > maxTokenLen:
		return t, fmt.Errorf("%d bytes long, at most %d are allowed", len(text), maxTokenLen)
	case !ok && newerToken.MatchString(text):
		return t, errors.New("a newer version of perkey wrote it")
	case !ok:
		return t, fmt.Errorf("it does not begin with %q", tokenVersion)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(coded)
	if err != nil || len(b) < 4 {
		return t, errors.New("it is not whole")
	}
	body := b[:len(b)-4]
	if crc32.ChecksumIEEE(body) != binary.BigEndian.Uint32(b[len(body):]) {
		return t, errors.New("it is not whole")
	}
	var numbers [3]int64
	for _, s := range []*string{&t.prefix, &t.key, &t.owner} {
		n, size := binary.Uvarint(body)
		if size <= 0 || n > uint64(len(body)-size) {
			return token{}, errTokenForm
		}
		*s, body = string(body[size:][:n]), body[size:][n:]
	}
	for i := range numbers {
		n, size := binary.Uvarint(body)
		if size <= 0 || n > 1<<62 {
			return token{}, errTokenForm
		}
		numbers[i], body = int64(n), body[size:]
	}
	t.first, t.used = numbers[0], numbers[1]
	if numbers[2] > MaxTTL.Milliseconds() {
		return token{}, errTokenForm
	}
	t.ttl = time.Duration(numbers[2]) * time.Millisecond
	valid := ident.ValidPrefix(t.prefix) && ValidateKey(t.key) == nil && store.ValidToken(t.owner) && store.LimitOf(t.owner) <= MaxCount &&
		t.first > 0 && t.used < store.FenceBlock && t.ttl >= MinTTL
	if !valid || t.String() != text { // one lease has one token
		return token{}, errTokenForm
	}
	return t, nil
}

var errTokenForm = errors.New("its form is unknown")
