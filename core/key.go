package core

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/perkey-go/perkey/internal/ident"
)

// MaxKeyLen is the length of the longest key, in bytes.
const MaxKeyLen = 512

// ValidateKey checks a key as Acquire does: 1 to 512 bytes, no ASCII control
// bytes. Its error wraps ErrInvalidKey and does not repeat the key.
func ValidateKey(key string) error {
	if key == "" {
		return fmt.Errorf("core: %w: it is empty", ErrInvalidKey)
	}
	if len(key) > MaxKeyLen {
		return fmt.Errorf("core: %w: %d bytes long, at most %d are allowed", ErrInvalidKey, len(key), MaxKeyLen)
	}
	for i := range len(key) {
		if b := key[i]; b < 0x20 || b == 0x7f {
			return fmt.Errorf("core: %w: control byte 0x%02x at offset %d", ErrInvalidKey, b, i)
		}
	}
	return nil
}

// Names in Redis. Redis Cluster hashes the text between the first pair of
// braces, or the whole name when that text is empty: the empty pair in front
// makes every brace in a user's key an ordinary byte.
func recordName(prefix, key string) string { return prefix + ":lock{}:" + key }

// keyOf is the key that the record is of.
func keyOf(prefix, record string) string { return record[len(recordName(prefix, "")):] }

func channelPrefix(prefix string) string { return prefix + ":wake:" }

// hostAndPid begins every locker's id, for people who look into Redis.
var hostAndPid = sync.OnceValue(func() string {
	host, _ := os.Hostname()
	host = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return -1
	}, host)
	return host[:min(len(host), maxHostLen)] + "/" + strconv.Itoa(os.Getpid()) + "/"
})

const maxHostLen = 24

func newLockerID() string { return hostAndPid() + ident.Random(4) }

// newEntry names one attempt of a locker to take a key: LIMIT:LOCKER.SECRET. Whoever
// knows it can release what it holds.
func newEntry(limit int, locker string) string {
	var secret entrySecret
	_, _ = rand.Read(secret[:]) // never fails, by its documentation
	return formatEntry(limit, locker, secret)
}

// entrySecret is an entry's SECRET.
type entrySecret [entrySecretLen / 2]byte

func formatEntry(limit int, locker string, secret entrySecret) string {
	return string(appendEntry(make([]byte, 0, entryRoom), limit, locker, secret))
}

// entryRoom is room for an entry, as a rule.
const entryRoom = 96

func appendEntry(b []byte, limit int, locker string, secret entrySecret) []byte {
	b = append(strconv.AppendInt(b, int64(limit), 10), ':')
	b = append(append(b, locker...), '.')
	return hex.AppendEncode(b, secret[:])
}

// splitEntry takes apart what formatEntry wrote.
func splitEntry(entry string) (locker string, secret entrySecret) {
	_, rest, _ := strings.Cut(entry, ":")
	locker, digits, _ := strings.Cut(rest, ".")
	_, _ = hex.Decode(secret[:], []byte(digits))
	return locker, secret
}

// entrySecretLen is how many digits there are in an entry's SECRET.
const entrySecretLen = 24

// named is an entry as messages name it.
func named(entry string) string { return entry[:max(len(entry)-secretLen, 0)] }

// limitOf is an entry's limit.
func limitOf(entry string) int {
	digits, _, _ := strings.Cut(entry, ":")
	n, _ := strconv.Atoi(digits)
	return n
}

// describe writes what a call is, for people, in the form that a record stores.
func describe(name, id string) string {
	if name == "" && id == "" {
		return ""
	}
	return url.PathEscape(name[:min(len(name), maxWhatLen)]) + ";" + url.PathEscape(id[:min(len(id), maxWhatLen)])
}

const maxWhatLen = 100
