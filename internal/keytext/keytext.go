// Package keytext writes keys, so that all adapters make the same key of the same thing.
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

// Join makes one key of several, so that different parts never make the same one.
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

// Escape writes a value in which each of the bytes, and %, is percent-encoded.
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

// hashedPrefix is how much of a hashed key can still be read.
const hashedPrefix = 64

// Hash makes a key of more than limit bytes a shorter one. Others stay as they are. check finds
// what no key may have, in up to limit bytes: what is cut off is judged as what is not.
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
