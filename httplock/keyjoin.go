package httplock

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perkey-go/perkey/core"
)

// joinSeparator stands between the parts of a joined key.
const joinSeparator = '|'

// Join makes one key of several, with "|" between them: Join(Header("tenant:",
// "X-Tenant"), Param("order:", "id")) makes "tenant:7|order:42". A "|" or "%" in a
// part becomes %7C or %25, so that different parts never make the same key. The first
// part that fails decides. Without parts, and with a nil one, every request is
// refused with 500.
func Join(parts ...KeyFunc) KeyFunc {
	if len(parts) == 0 {
		return failing(invalid("Join: no parts"))
	}
	if slices.ContainsFunc(parts, func(part KeyFunc) bool { return part == nil }) {
		return failing(invalid("Join: a key function is nil"))
	}
	parts = slices.Clone(parts)
	return func(r *http.Request) (string, error) {
		var b strings.Builder
		for i, part := range parts {
			v, err := part(r)
			if err != nil {
				return "", err
			}
			if i > 0 {
				b.WriteByte(joinSeparator)
			}
			escape(&b, v, string(joinSeparator))
		}
		return b.String(), nil
	}
}

// escape writes a value in which each of the bytes, and %, is percent-encoded.
func escape(b *strings.Builder, value, bytes string) {
	const hexDigits = "0123456789ABCDEF"
	for i := range len(value) {
		c := value[i]
		if c == '%' || strings.IndexByte(bytes, c) >= 0 {
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&0xf]})
		} else {
			b.WriteByte(c)
		}
	}
}

// hashedPrefix is how much of a hashed key can still be read.
const hashedPrefix = 64

// Hash lets keys be of any length: one of more than core.MaxKeyLen bytes becomes its
// first 64 bytes, "~sha256:" and the hex digits of its SHA-256. Others stay as they
// are, so that Hash can be added to a running service. A key with control bytes is
// refused with 400, however long it is. A nil key refuses every request with 500.
func Hash(key KeyFunc) KeyFunc {
	if key == nil {
		return failing(invalid("Hash: the key function is nil"))
	}
	return func(r *http.Request) (string, error) {
		k, err := key(r)
		if err != nil || len(k) <= core.MaxKeyLen {
			return k, err
		}
		// What is cut off is judged as what is not.
		for part := range slices.Chunk([]byte(k), core.MaxKeyLen) {
			if err := core.ValidateKey(string(part)); err != nil {
				return "", err
			}
		}
		n := hashedPrefix
		for n > hashedPrefix-utf8.UTFMax && !utf8.RuneStart(k[n]) {
			n--
		}
		return k[:n] + "~sha256:" + sha256Hex(k), nil
	}
}

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
