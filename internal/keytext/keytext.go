// Package keytext makes the text of keys, so that all adapters make the same key of the same thing.
package keytext

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"
)

// separator stands between the parts of a joined key.
const separator = '|'

// Join makes one key of several parts, so that different parts never make the same key.
func Join(parts []string) string {
	var b strings.Builder
	for i, part := range parts {
		if i > 0 {
			b.WriteByte(separator)
		}
		Escape(&b, part, string(separator))
	}
	return b.String()
}

// Escape writes value with each of bytes, and %, percent-encoded.
func Escape(b *strings.Builder, value, bytes string) {
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

// hashedPrefix is how many bytes of a hashed key stay readable.
const hashedPrefix = 64

// Hash shortens a key of more than limit bytes; a shorter one stays as it is. check returns an
// error for text that no key may have, and is called with up to limit bytes at a time: it sees all
// of the key.
func Hash(key string, limit int, check func(string) error) (string, error) {
	if len(key) <= limit {
		return key, nil
	}
	for part := range slices.Chunk([]byte(key), limit) {
		if err := check(string(part)); err != nil {
			return "", err
		}
	}
	n := hashedPrefix
	for n > hashedPrefix-utf8.UTFMax && !utf8.RuneStart(key[n]) {
		n--
	}
	return key[:n] + "~sha256:" + Digest(key), nil
}

// Digest is the SHA-256 of s, in hex digits.
func Digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
