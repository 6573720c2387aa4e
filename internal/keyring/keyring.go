// Package keyring seals what other packages store in Redis, and opens it.
package keyring

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// ErrSealed means that what Redis has cannot be opened with the Keyring: it is not sealed, is sealed under a key that the
// Keyring lacks, belongs to another record, or is damaged.
var ErrSealed = errors.New("cannot be opened")

// These match ErrSealed too. They do not mean that something is wrong with what is stored: another
// process may have the key, be of a newer release, or accept what is not sealed.
var (
	errUnsealed       = fmt.Errorf("%w: it is not sealed", ErrSealed)
	ErrUnknownKey     = fmt.Errorf("%w: its key is unknown", ErrSealed)
	errUnknownVersion = fmt.Errorf("%w: its version is unknown", ErrSealed)
)

// MayOpenElsewhere reports whether another process may be able to open what this one cannot.
func MayOpenElsewhere(err error) bool {
	return errors.Is(err, ErrUnknownKey) || errors.Is(err, errUnknownVersion) || errors.Is(err, errUnsealed)
}

const (
	// KeyLen is the length of a key, in bytes.
	KeyLen = 32
	// MaxKeyIDLen is the length of the longest id, in bytes.
	MaxKeyIDLen = 32
)

// Keyring is delayqueue.Keyring, which documents it.
type Keyring struct {
	// Current is the id of the key that seals. With AcceptUnsealed it may be empty: nothing is sealed yet.
	Current string
	// Keys are the keys by their ids. Each opens what it has sealed, whichever is Current.
	Keys map[string][]byte
	// AcceptUnsealed accepts data that is not sealed, so that encryption can be switched on while such data is
	// stored. Meanwhile anyone with write access to Redis can forge data: switch it off when the last unsealed data is
	// gone.
	AcceptUnsealed bool
}

// String names the Current key and says how many there are.
func (k Keyring) String() string {
	current := "invalid"
	if k.Current == "" && k.AcceptUnsealed {
		current = "none"
	} else if checkKeyID(k.Current) == nil { // else it may be a key that got into the wrong field
		current = k.Current
	}
	return fmt.Sprintf("Keyring(current %s, of %d)", current, len(k.Keys))
}

// GoString returns String.
func (k Keyring) GoString() string { return k.String() }

// Format prints String, whatever the verb: %d would show the keys.
func (k Keyring) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.String()) }

// LogValue returns String.
func (k Keyring) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText returns String: a Keyring can be read from JSON, but not written to it.
func (k Keyring) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Clone copies a Keyring, so that its owner may change or wipe the original.
func Clone(k Keyring) Keyring {
	k.Keys = maps.Clone(k.Keys)
	for id, key := range k.Keys {
		k.Keys[id] = bytes.Clone(key)
	}
	return k
}

// Check returns what is wrong with a Keyring, or nil. It never shows an invalid id: that may be a
// key in the wrong place.
func Check(k Keyring) error {
	if len(k.Keys) == 0 {
		return errors.New("the Keyring is empty")
	}
	owner := map[string]string{} // the id of each key
	for _, id := range slices.Sorted(maps.Keys(k.Keys)) {
		if err := checkKeyID(id); err != nil {
			return err
		}
		key := k.Keys[id]
		switch other, twice := owner[string(key)]; {
		case len(key) != KeyLen:
			return fmt.Errorf("key %q is %d bytes long: want %d", id, len(key), KeyLen)
		case bytes.Equal(key, make([]byte, KeyLen)):
			return fmt.Errorf("key %q is all zero", id)
		case twice:
			return fmt.Errorf("keys %q and %q are the same", other, id)
		}
		owner[string(key)] = id
	}
	if k.Current == "" && k.AcceptUnsealed {
		return nil
	}
	if err := checkKeyID(k.Current); err != nil {
		return fmt.Errorf("the id of Current: %w", err)
	}
	if _, ok := k.Keys[k.Current]; !ok {
		return fmt.Errorf("there is no key of the Current id %q", k.Current)
	}
	return nil
}

func checkKeyID(id string) error {
	if id == "" || len(id) > MaxKeyIDLen {
		return fmt.Errorf("a key's id is %d bytes long: want 1 to %d", len(id), MaxKeyIDLen)
	}
	if i := strings.IndexFunc(id, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}); i >= 0 {
		return fmt.Errorf("a key's id has something else than A-Z a-z 0-9 . _ - at offset %d", i)
	}
	return nil
}

// The sealed form:
//
//	magic, version, length of the key's id, the id, nonce, ciphertext, tag
//	3      1        1                       1..32   12     as plain    16
//
// All before the nonce is the header.
const (
	// Magic begins the sealed form. 0xff is never in UTF-8, so no text looks sealed.
	Magic       = "\xffpk"
	sealVersion = 1
	// Overhead is how many bytes sealing adds at most. It is the same for all keys, so
	// that a rotation does not change what fits.
	Overhead = len(Magic) + 2 + MaxKeyIDLen + 12 + 16
)

// Sealer seals data with AES-256-GCM, and opens it. Sealed data is bound to what it belongs to: it
// does not open as anything else's. A nil Sealer has no keys. It is safe for concurrent use.
type Sealer struct {
	current  string
	keys     map[string]cipher.AEAD
	unsealed bool // unsealed data is accepted
}

// New makes a Sealer. It retains nothing of the Keyring.
func New(keys Keyring) (*Sealer, error) {
	if err := Check(keys); err != nil {
		return nil, err
	}
	s := &Sealer{current: keys.Current, keys: make(map[string]cipher.AEAD, len(keys.Keys)), unsealed: keys.AcceptUnsealed}
	for id, key := range keys.Keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", id, err)
		}
		if s.keys[id], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, fmt.Errorf("key %q: %w", id, err)
		}
	}
	return s, nil
}

// Seals reports whether there is a current key.
func (s *Sealer) Seals() bool { return s != nil && s.current != "" }

// AcceptsUnsealed returns the Keyring's AcceptUnsealed.
func (s *Sealer) AcceptsUnsealed() bool { return s != nil && s.unsealed }

// Seal seals plain, which belongs to of. A Sealer without a current key returns it unchanged.
func (s *Sealer) Seal(plain []byte, of ...string) []byte {
	if !s.Seals() {
		return plain
	}
	header := make([]byte, 0, Overhead+len(plain))
	header = append(header, Magic...)
	header = append(header, sealVersion, byte(len(s.current)))
	header = append(header, s.current...)
	return s.keys[s.current].Seal(header, nil, plain, associated(header, of))
}

// Open is the inverse of Seal. Its errors match ErrSealed, and show nothing of what is stored
// except the key's id.
func (s *Sealer) Open(stored []byte, of ...string) ([]byte, error) {
	if s.isPlain(stored) {
		return stored, nil
	}
	aead, sealed, err := s.header(stored)
	if s.takesAsIs(err) {
		return stored, nil
	}
	if err != nil {
		return nil, err
	}
	header := stored[:len(stored)-len(sealed)]
	plain, err := aead.Open([]byte{}, nil, sealed, associated(header, of)) // empty, not nil, as read without encryption
	if err != nil {
		return nil, fmt.Errorf("%w: it is damaged, of another record, or sealed under another key %q: "+
			"compare the Keyrings of all processes, and find out who else writes to this Redis", ErrSealed, header[len(Magic)+2:])
	}
	return plain, nil
}

// isPlain reports whether stored data is used unchanged, since it is not sealed.
func (s *Sealer) isPlain(stored []byte) bool {
	return (s == nil || s.unsealed) && !bytes.HasPrefix(stored, []byte(Magic))
}

// takesAsIs reports whether data whose header was read with err is used unchanged. A process
// without keys does not use data that can only be sealed: encryption was switched on just now.
func (s *Sealer) takesAsIs(err error) bool { return s == nil && !errors.Is(err, ErrUnknownKey) }

// header reads which key opens sealed data. The rest that it returns begins with the nonce.
func (s *Sealer) header(stored []byte) (aead cipher.AEAD, rest []byte, err error) {
	const whoElse = ": find out who else writes to this Redis"
	refuse := func(why error, format string, args ...any) (cipher.AEAD, []byte, error) {
		return nil, nil, fmt.Errorf("%w: %s", why, fmt.Sprintf(format, args...))
	}
	if !bytes.HasPrefix(stored, []byte(Magic)) {
		return refuse(errUnsealed, "give WithEncryption to every process, and set Keyring.AcceptUnsealed while data from before is left")
	}
	sealed := stored[len(Magic):]
	if len(sealed) < 2 {
		return refuse(ErrSealed, "it is cut short"+whoElse)
	}
	if sealed[0] != sealVersion {
		return refuse(errUnknownVersion, "its version is %d, not %d: update this process, unless no other is newer", sealed[0], sealVersion)
	}
	idLen := int(sealed[1])
	if len(sealed) < 2+idLen {
		return refuse(ErrSealed, "it is cut short"+whoElse)
	}
	keyID, sealed := string(sealed[2:2+idLen]), sealed[2+idLen:]
	if checkKeyID(keyID) != nil {
		return refuse(ErrSealed, "its key's id is damaged"+whoElse)
	}
	if s != nil {
		aead = s.keys[keyID]
	}
	if aead == nil {
		return refuse(ErrUnknownKey, "add key %q to the Keyring of this process", keyID)
	}
	return aead, sealed, nil
}

// associated returns the associated data of AES-GCM: the header, and what the sealed data belongs
// to. The lengths make it unambiguous.
func associated(header []byte, of []string) []byte {
	var b []byte
	for _, part := range append([]string{string(header)}, of...) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}
