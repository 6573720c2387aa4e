package core

import "fmt"

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
