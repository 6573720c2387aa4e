// Package ident makes and checks the parts of perkey's names in Redis.
package ident

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// MaxPrefixLen is the length of the longest prefix, in bytes.
const MaxPrefixLen = 64

// DefaultPrefix is the prefix of names unless the user sets one.
const DefaultPrefix = "perkey"

// StorePrefix returns the prefix of an *idempotency.Store, which has no exported method for it. Package idempotency sets it.
var StorePrefix func(store any) string

// ValidPrefix reports whether names in Redis may begin with prefix: 1 to 64
// bytes, without braces, which choose slots in a Cluster, white space and
// control bytes.
func ValidPrefix(prefix string) bool {
	return prefix != "" && len(prefix) <= MaxPrefixLen && !strings.ContainsFunc(prefix, func(r rune) bool {
		return r <= ' ' || r == 0x7f || r == '{' || r == '}'
	})
}

// Random returns 8*n random bits from the system, as 2*n hexadecimal digits.
func Random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails, by its documentation
	return hex.EncodeToString(b)
}

// Hash returns a hash of parts in which ("ab", "c") differs from ("a", "bc").
func Hash(parts ...[]byte) string {
	h, b := sha256.New(), make([]byte, 0, 3*sha256.Size)
	for _, part := range parts {
		h.Write(binary.BigEndian.AppendUint64(b, uint64(len(part)))) // never fails, by its documentation
		h.Write(part)
	}
	sum := h.Sum(b)
	return string(hex.AppendEncode(sum, sum)[len(sum):])
}
