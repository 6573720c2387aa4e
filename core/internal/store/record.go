package store

// The names of records, channels and Lockers, and what a record says of a call.

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/internal/ident"
)

// MaxKeyLen is the length of the longest key, in bytes.
const MaxKeyLen = 512

// ValidateKey checks a user's key; see core.ValidateKey.
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

// RecordName is the name in Redis of a key's record. Redis Cluster hashes the text between the first
// pair of braces, or the whole name when that text is empty: the empty pair in front makes every
// brace in a user's key an ordinary byte.
func RecordName(prefix, key string) string { return prefix + lock + key }

const lock = ":lock{}:"

// KeyOf is the key that the record is of.
func KeyOf(prefix, record string) string { return record[len(prefix)+len(lock):] }

func channelPrefix(prefix string) string { return prefix + ":wake:" }

// NewLockerID makes the id of a Locker, HOST/PID/RANDOM, which names its channel.
func NewLockerID() string { return hostAndPid() + ident.Random(4) }

// hostAndPid tells people who inspect Redis where a Locker runs.
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

const (
	maxHostLen = 24
	// Of ids in tokens.
	maxLockerLen  = 64
	lockerLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/"
)

// Describe writes what a call is, for people, in the form that a record stores: NAME;ID;TTL, the TTL in ms. Without a
// name and an id, and with the usual TTL, it is nothing.
func Describe(name, id string, ttl time.Duration) string {
	if name == "" && id == "" && ttl == usualTTL {
		return ""
	}
	var room [2*3*maxWhatLen + 1 + 1 + len("86400000")]byte
	what := appendEscaped(append(appendEscaped(room[:0], name), ';'), id)
	if ttl != usualTTL {
		what = strconv.AppendInt(append(what, ';'), ttl.Milliseconds(), 10)
	}
	return string(what)
}

const maxWhatLen = 100

// readWhat reads what Describe wrote.
func readWhat(what string) (name, id string, ttl time.Duration) {
	name, rest, _ := strings.Cut(what, ";")
	id, digits, other := strings.Cut(rest, ";")
	ttl = usualTTL
	if other {
		ms, err := strconv.ParseUint(digits, 10, 32)
		if err != nil { // it is none of ours
			ms = 0
		}
		ttl = time.Duration(ms) * time.Millisecond
	}
	return unescape(name), unescape(id), ttl
}

// appendEscaped appends the beginning of s as url.PathEscape writes it, and allocates nothing.
func appendEscaped(b []byte, s string) []byte {
	for i := range min(len(s), maxWhatLen) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_.~$&+=:@", c) >= 0:
			b = append(b, c)
		default:
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return b
}

const upperHex = "0123456789ABCDEF"
