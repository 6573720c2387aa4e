package httplock

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/ident"
)

// WithIdempotency lets a client send a request again, under the same Idempotency-Key
// (draft-ietf-httpapi-idempotency-key-header), without its work being done twice: the
// response to the first request is kept in store, and is the response to the others, with
// the header "Idempotent-Replayed: true". The package documentation describes it in full.
//
// A request without the header is guarded as without this option, unless RequireIdempotencyKey is given. The header is
// ignored on safe methods. Of nested guards the outermost one handles the key. A request that a handler sends to its
// own service, with its ctx, is a separate request if it has another key, and otherwise a part of the handler's work.
//
// The guard must be exclusive: one that is shared or counted is an error, as is a store under another prefix than the
// Locker's. It needs [WithPrincipal], so that a client that guesses another's key does not see the other's response,
// or [WithAnonymous], if all clients share their keys; without one of the two New returns an error. The host is not part of the comparison: where it decides whose data a
// request is about, put it in the principal.
func WithIdempotency(store *idempotency.Store, opts ...IdempotencyOption) Option {
	return func(m *Middleware) error {
		switch {
		case store == nil:
			return invalid("WithIdempotency: the store is nil")
		case m.idempotency != nil:
			return invalid("WithIdempotency is given twice")
		}
		rules := &idempotencyRules{store: store, maxResponse: DefaultMaxResponseBody, kept: defaultResponseHeaders()}
		for _, opt := range opts {
			if opt == nil {
				return invalid("WithIdempotency: an option is nil")
			}
			if err := opt(rules); err != nil {
				return err
			}
		}
		m.idempotency = rules
		return nil
	}
}

// IdempotencyOption configures WithIdempotency.
type IdempotencyOption func(*idempotencyRules) error

// RequireIdempotencyKey refuses requests without Idempotency-Key with 400.
func RequireIdempotencyKey() IdempotencyOption {
	return func(o *idempotencyRules) error {
		o.required = true
		return nil
	}
}

// KeepResponseBody sets up to how many bytes a response's body is stored. A longer one is not
// stored, and neither is a response that streams; the request is not run again either way, see the
// package documentation. Default 64 KiB; 0 to 64 MiB.
func KeepResponseBody(n int) IdempotencyOption {
	return func(o *idempotencyRules) error {
		if n < 0 || n > maxMaxResponseBody {
			return invalid("KeepResponseBody(%d): want 0 to %d bytes", n, maxMaxResponseBody)
		}
		o.maxResponse = n
		return nil
	}
}

// KeepResponseHeaders adds response headers to those that are stored, which are by default those
// that Replay stores. It refuses the same headers as WithAllowedResponseHeaders.
func KeepResponseHeaders(names ...string) IdempotencyOption {
	return func(o *idempotencyRules) error { return addHeaders(o.kept, neverKept, "KeepResponseHeaders", names) }
}

// IdempotencyKey is the key function of routes whose requests exclude only their own repetitions: requests with the
// same Idempotency-Key, principal and route run one at a time, and no others wait. The route needs WithIdempotency,
// and every request needs the header. Join and Hash accept it.
func IdempotencyKey(*http.Request) (string, error) { return "", errLockByIdempotencyKey }

// idempotencyKeyError is a KeyFunc's error in place of a key: key makes the key of what
// excludes requests with the same Idempotency-Key, which is known only after the KeyFunc.
type idempotencyKeyError struct {
	key func(own string) (string, error)
}

func (*idempotencyKeyError) Error() string {
	return "httplock: the key function IdempotencyKey needs WithIdempotency, and a method that is not safe"
}

// idempotencyRules is what WithIdempotency and its options say.
type idempotencyRules struct {
	store       *idempotency.Store
	required    bool
	payload     func(r *http.Request, body []byte) ([]byte, error)
	maxResponse int
	kept        map[string]bool
}

// check is called once all options are known.
func (o *idempotencyRules) check(m *Middleware) error {
	switch {
	case o == nil:
		return nil
	case !m.guard.Exclusive():
		return invalid("WithIdempotency: the guard is shared or counted, so that the same request could run twice at a time")
	case ident.StorePrefix(o.store) != m.guard.Locker().Prefix():
		return invalid("WithIdempotency: the Locker's prefix is %q, and the store's %q", m.guard.Locker().Prefix(), ident.StorePrefix(o.store))
	case m.body.stream:
		return invalid("WithIdempotency and WithStreamBody exclude one another: the body is a part of what is compared")
	}
	return nil
}

var (
	// errLockByIdempotencyKey: the key function is IdempotencyKey.
	errLockByIdempotencyKey = &idempotencyKeyError{func(own string) (string, error) { return own, nil }}
	// errNoIdempotencyKey: the request has none, and needs one.
	errNoIdempotencyKey = errors.New("httplock: the request has no Idempotency-Key")
	// errBadIdempotencyKey: it has one that cannot be used.
	errBadIdempotencyKey = errors.New("httplock: the Idempotency-Key is malformed")
	// errTooLargeToCompare: its body is longer than the cap. Comes with errBodyTooLarge.
	errTooLargeToCompare = errors.New("httplock: the body is too large for an Idempotency-Key")
	// errNoPrincipal: it is not known whose the key is.
	errNoPrincipal = errors.New("httplock: a request with credentials has an Idempotency-Key, and the function of WithPrincipal returned no principal for it")
	// errNoTee: the adapter cannot show what the handler answers.
	errNoTee = errors.New("httplock: the adapter does not support WithIdempotency: its Exchange has no Tee")
	// errAnswered: the request was done before, or is parked: there is an answer. Observers of locks see a call that was
	// refused its key, and no failure.
	errAnswered = fmt.Errorf("httplock: the request was made before: %w", core.ErrConflict)
	// errNotKept: it was done before, and its response was not kept.
	errNotKept = errors.New("httplock: the request was made before, and its response was not kept")
)

// maxIdempotencyKey is the length of the longest key, in bytes.
const maxIdempotencyKey = 255

// parseIdempotencyKey reads the header, which is an Item of RFC 9651 that is a string, without parameters. In
// practice it comes without quotes too, which makes no other key of it. It reports whether there is a header.
func parseIdempotencyKey(lines []string) (key string, there bool, err error) {
	if len(lines) == 0 {
		return "", false, nil
	}
	ok := len(lines) == 1
	if ok {
		value := textproto.TrimString(lines[0])
		if inner, quoted := strings.CutPrefix(value, `"`); quoted {
			key, ok = sfString(inner)
		} else {
			key, ok = value, !strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"\,;`, r) })
		}
	}
	if !ok || key == "" || len(key) > maxIdempotencyKey {
		return "", true, errBadIdempotencyKey
	}
	return key, true, nil
}

// sfString reads a string of RFC 9651 from behind its first quote.
func sfString(s string) (string, bool) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return string(b), i == len(s)-1
		case c < ' ' || c > '~':
			return "", false
		case c == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
		}
		b = append(b, s[i])
	}
	return "", false
}
