package httplock

import (
	"errors"
	"net/http"
	"slices"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/keytext"
)

// Join returns a KeyFunc that joins the keys of several with "|": Join(Header("tenant:", "X-Tenant"),
// Param("order:", "id")) makes "tenant:7|order:42". A "|" or "%" in a part becomes %7C or %25, so
// that different parts never make the same key. The first part that returns an error, [NoKey]
// included, decides. Without parts, or with a nil one, every request is refused with 500.
func Join(parts ...KeyFunc) KeyFunc {
	if len(parts) == 0 {
		return failing(invalid("Join: no parts"))
	}
	if slices.ContainsFunc(parts, func(part KeyFunc) bool { return part == nil }) {
		return failing(invalid("Join: a key function is nil"))
	}
	parts = slices.Clone(parts)
	return func(r *http.Request) (string, error) {
		values := make([]string, len(parts))
		var later map[int]*idempotencyKeyError
		for i, part := range parts {
			v, err := part(r)
			if by, ok := errors.AsType[*idempotencyKeyError](err); ok {
				if later == nil {
					later = map[int]*idempotencyKeyError{}
				}
				later[i] = by
			} else if err != nil {
				return "", err
			}
			values[i] = v
		}
		if later == nil {
			return keytext.Join(values), nil
		}
		return "", &idempotencyKeyError{func(own string) (_ string, err error) {
			for i, by := range later {
				if values[i], err = by.key(own); err != nil {
					return "", err
				}
			}
			return keytext.Join(values), nil
		}}
	}
}

// Hash lets keys be of any length: one of more than core.MaxKeyLen bytes becomes its
// first 64 bytes, "~sha256:" and the hex digits of its SHA-256. Others stay as they
// are, so that Hash can be added to a running service. A key with control bytes is
// refused with 400, however long it is. A nil key refuses every request with 500.
func Hash(key KeyFunc) KeyFunc {
	if key == nil {
		return failing(invalid("Hash: the key function is nil"))
	}
	return then(key, func(k string) (string, error) { return keytext.Hash(k, core.MaxKeyLen, core.ValidateKey) })
}

// Canonical returns a KeyFunc whose keys are those of key, rewritten by f, so that all spellings of
// one thing make one key:
//
//	httplock.Canonical(httplock.Param("user:", "email"), func(k string) (string, error) { return strings.ToLower(k), nil })
//
// f gets the whole key. If f needs the value alone, give key no prefix, and have f add one to what
// it returns. An error of f, or an empty string, is the client's fault: 400. f must be safe for
// concurrent use. If key or f is nil every request is refused with 500. For numbers and UUIDs there
// are [ParamInt] and [ParamUUID].
func Canonical(key KeyFunc, f func(key string) (string, error)) KeyFunc {
	if key == nil || f == nil {
		return failing(invalid("Canonical: the key function, or the one that writes its keys, is nil"))
	}
	return then(key, func(k string) (string, error) {
		written, err := f(k)
		switch {
		case err != nil:
			return "", BadKey(err)
		case written == "":
			return "", BadKey(errors.New("its canonical form is empty"))
		}
		return written, nil
	})
}

// then applies f to the keys that key makes, also to that of IdempotencyKey, which is known later.
func then(key KeyFunc, f func(string) (string, error)) KeyFunc {
	return func(r *http.Request) (string, error) {
		k, err := key(r)
		if by, ok := errors.AsType[*idempotencyKeyError](err); ok {
			return "", &idempotencyKeyError{func(own string) (string, error) {
				k, err := by.key(own)
				if err != nil {
					return "", err
				}
				return f(k)
			}}
		}
		if err != nil {
			return "", err
		}
		return f(k)
	}
}
