package delayqueue

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

// ErrSealed means that what Redis holds of a message cannot be opened with the
// queue's Keyring: it is not sealed, sealed under a key that the Keyring lacks,
// of another message, or damaged.
var ErrSealed = errors.New("cannot be opened")

// These match ErrSealed too. Unlike the others they say nothing of the message: another
// process may have the key, or be of a newer release.
var (
	errUnknownKey     = fmt.Errorf("%w: its key is unknown", ErrSealed)
	errUnknownVersion = fmt.Errorf("%w: its version is unknown", ErrSealed)
)

func mayOpenElsewhere(err error) bool {
	return errors.Is(err, errUnknownKey) || errors.Is(err, errUnknownVersion)
}

const (
	keyLen      = 32
	maxKeyIDLen = 32
)

// Keyring holds the keys of WithEncryption, by their ids. A key is 32 random
// bytes; a password is not one. An id is 1 to 32 letters, digits, dots,
// underscores and hyphens; it is no secret, and is stored beside what the key
// has sealed.
//
// To rotate, add the new key to the Keyring of every process, then make it
// Current everywhere, and remove the old one when nothing it sealed is left:
// after the longest age plus the longest retention. An id is never used for a
// second key.
//
// Rotate before a key has sealed 2^32 times: nonces are random, and NIST SP
// 800-38D, section 8.3, allows no more. The payload, the result and each cause
// of a message count, in all queues and processes that share the key.
//
// A Keyring is printed, logged and marshaled without its keys. The exception is
// package fmt, given a struct with a Keyring in an unexported field.
type Keyring struct {
	// Current is the id of the key that seals.
	Current string
	// Keys open what they have sealed, whichever is Current.
	Keys map[string][]byte
	// AcceptUnsealed has messages run that are not sealed, so that encryption can be switched on while such are
	// stored. Who writes to Redis can make up messages meanwhile: switch it off when the last of them is gone, after
	// the longest age.
	AcceptUnsealed bool
}

// String names the Current key and counts all.
func (k Keyring) String() string {
	current := "invalid"
	if checkKeyID(k.Current) == nil { // else it may be a key that got into the wrong field
		current = k.Current
	}
	return fmt.Sprintf("Keyring(current %s, of %d)", current, len(k.Keys))
}

// GoString is String.
func (k Keyring) GoString() string { return k.String() }

// Format prints String, whatever the verb: %d would show the keys.
func (k Keyring) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.String()) }

// LogValue is String.
func (k Keyring) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText is String: a Keyring can be read from JSON, but not written to it.
func (k Keyring) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// check never shows an id that is invalid: it may be a key in the wrong place.
func (k Keyring) check() error {
	if len(k.Keys) == 0 {
		return invalidOption("WithEncryption: the Keyring is empty")
	}
	owner := map[string]string{} // the id of each key
	for _, id := range slices.Sorted(maps.Keys(k.Keys)) {
		if err := checkKeyID(id); err != nil {
			return invalidOption("WithEncryption: %v", err)
		}
		key := k.Keys[id]
		switch other, twice := owner[string(key)]; {
		case len(key) != keyLen:
			return invalidOption("WithEncryption: key %q is %d bytes long: want %d", id, len(key), keyLen)
		case bytes.Equal(key, make([]byte, keyLen)):
			return invalidOption("WithEncryption: key %q is all zero", id)
		case twice:
			return invalidOption("WithEncryption: keys %q and %q are the same", other, id)
		}
		owner[string(key)] = id
	}
	if err := checkKeyID(k.Current); err != nil {
		return invalidOption("WithEncryption: Current: %v", err)
	}
	if _, ok := k.Keys[k.Current]; !ok {
		return invalidOption("WithEncryption: there is no key of the Current id %q", k.Current)
	}
	return nil
}

func checkKeyID(id string) error {
	if id == "" || len(id) > maxKeyIDLen {
		return fmt.Errorf("a key's id is %d bytes long: want 1 to %d", len(id), maxKeyIDLen)
	}
	if i := strings.IndexFunc(id, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}); i >= 0 {
		return fmt.Errorf("a key's id has something else than A-Z a-z 0-9 . _ - at offset %d", i)
	}
	return nil
}

// WithEncryption has the queue seal payloads, results and causes with
// AES-256-GCM before they go to Redis, so that who reads Redis does not read
// them, and who writes there cannot make them up, change them, or move them to
// another message or queue name. Default: they are stored as they are.
//
// Ids, lock keys, names and principals are not hidden, but bound: a payload does not
// open under others. Times, counters and sizes are neither. Who writes to Redis can
// delete, repeat and reorder messages, and put back what a message of the same id
// once held. Queues that must not
// take each other's messages, as those of two prefixes, need different keys.
//
// All processes of the queue need it, and the same keys under the same ids. Once one has used the queue with it, it is
// encrypted for good: a process without stores and runs nothing (ErrOtherEncryption), from a minute later on if it has begun before; but it
// may list, count, cancel, redrive, purge and pause. What is not sealed is refused too (ErrSealed). So there are two ways to switch it on. Either let the queue run empty first, dead letters included:
// before that a process with it is refused (ErrOtherEncryption). Or set Keyring.AcceptUnsealed in all processes, for as
// long as such messages may be stored; those processes that have no keys yet take no more work from then on.
//
// It cannot be switched off: enqueue in a queue of a new name, and keep workers on the old one until that
// is empty. Locks hold across the two, the order of a key's messages does not.
func WithEncryption(keys Keyring) Option {
	// The Option may be used long after the caller changed or wiped its map.
	keys.Keys = maps.Clone(keys.Keys)
	for id, key := range keys.Keys {
		keys.Keys[id] = bytes.Clone(key)
	}
	return func(q *Queue) (err error) {
		q.sealer, err = newSealer(q.name, keys)
		return err
	}
}

// What a sealer seals.
const (
	kindPayload = "payload"
	kindResult  = "result"
	kindCause   = "cause"
)

// The sealed form:
//
//	magic, version, length of the key's id, the id, nonce, ciphertext, tag
//	3      1        1                       1..32   12     as plain    16
//
// All before the nonce is the header.
const (
	sealMagic   = "\xffpk" // 0xff is never in UTF-8: no text looks sealed
	sealVersion = 1
	// sealOverhead is what sealing adds at most. It is the same for all keys, so
	// that a rotation does not change what fits.
	sealOverhead = len(sealMagic) + 2 + maxKeyIDLen + 12 + 16
	// maxSealed is the longest string that Redis takes, unless configured.
	maxSealed = 512 << 20
)

// sealer turns what a queue stores into its sealed form and back. A nil one
// leaves it as it is. It is safe for concurrent use.
type sealer struct {
	queue    string
	current  string
	keys     map[string]cipher.AEAD
	unsealed bool // is opened as it is
}

func newSealer(queue string, keys Keyring) (*sealer, error) {
	if err := keys.check(); err != nil {
		return nil, err
	}
	s := &sealer{queue: queue, current: keys.Current, keys: make(map[string]cipher.AEAD, len(keys.Keys)), unsealed: keys.AcceptUnsealed}
	for id, key := range keys.Keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, invalidOption("WithEncryption: key %q: %v", id, err)
		}
		if s.keys[id], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, invalidOption("WithEncryption: key %q: %v", id, err)
		}
	}
	return s, nil
}

// overhead is by how many bytes the sealed form is longer, at most.
func (s *sealer) overhead() int {
	if s == nil {
		return 0
	}
	return sealOverhead
}

// sealedOf is the message that something sealed belongs to.
type sealedOf struct{ id, key, name, principal string }

// seal makes the sealed form of plain, which is the kind of a message.
func (s *sealer) seal(kind string, of sealedOf, plain []byte) ([]byte, error) {
	if s == nil {
		return plain, nil
	}
	if len(plain) > maxSealed-sealOverhead {
		return nil, fmt.Errorf("delayqueue: %s of message %q: %w: %d bytes, at most %d can be sealed",
			kind, of.id, ErrPayloadTooLarge, len(plain), maxSealed-sealOverhead)
	}
	header := make([]byte, 0, sealOverhead+len(plain))
	header = append(header, sealMagic...)
	header = append(header, sealVersion, byte(len(s.current)))
	header = append(header, s.current...)
	return s.keys[s.current].Seal(header, nil, plain, s.associated(header, kind, of)), nil
}

// open is the inverse of seal. Its errors match ErrSealed, and show nothing of
// what is stored but the key's id.
func (s *sealer) open(kind string, of sealedOf, stored []byte) ([]byte, error) {
	if s.isPlain(stored) {
		return stored, nil
	}
	aead, sealed, err := s.header(stored)
	if s.takesAsIs(err) {
		return stored, nil
	}
	if err != nil {
		return nil, fmt.Errorf("delayqueue: %s of message %q: %w", kind, of.id, err)
	}
	header := stored[:len(stored)-len(sealed)]
	plain, err := aead.Open([]byte{}, nil, sealed, s.associated(header, kind, of)) // empty, not nil, as read without encryption
	if err != nil {
		return nil, fmt.Errorf("delayqueue: %s of message %q: %w: it is damaged, of another message or queue, or sealed under another key %q: "+
			"compare the Keyrings of all processes, and find out who else writes to this Redis", kind, of.id, ErrSealed, header[len(sealMagic)+2:])
	}
	return plain, nil
}

// isPlain reports whether something is used as it is stored, since it is not sealed.
func (s *sealer) isPlain(stored []byte) bool {
	return (s == nil || s.unsealed) && !bytes.HasPrefix(stored, []byte(sealMagic))
}

// takesAsIs reports whether something is used as it is stored, whose header was read with err. One who has no keys
// leaves alone what can only be sealed: the queue was encrypted just now.
func (s *sealer) takesAsIs(err error) bool { return s == nil && !errors.Is(err, errUnknownKey) }

// cannotOpen is an error if another process may be able to open a message's payload, but
// this one cannot.
func (s *sealer) cannotOpen(m Message) error {
	if s.isPlain(m.Payload) {
		return nil
	}
	if _, _, err := s.header(m.Payload); mayOpenElsewhere(err) && !s.takesAsIs(err) {
		return fmt.Errorf("delayqueue: %s of message %q: %w", kindPayload, m.ID, err)
	}
	return nil
}

// header reads which key opens a sealed form. What it returns begins with the nonce.
func (s *sealer) header(stored []byte) (aead cipher.AEAD, rest []byte, err error) {
	refuse := func(why error, format string, args ...any) (cipher.AEAD, []byte, error) {
		return nil, nil, fmt.Errorf("%w: %s", why, fmt.Sprintf(format, args...))
	}
	if !bytes.HasPrefix(stored, []byte(sealMagic)) {
		return refuse(ErrSealed, "it is not sealed: give WithEncryption to every process of the queue, "+
			"and let a queue run empty before it is switched on")
	}
	sealed := stored[len(sealMagic):]
	if len(sealed) < 2 {
		return refuse(ErrSealed, "it is cut short: enqueue the work again")
	}
	if sealed[0] != sealVersion {
		return refuse(errUnknownVersion, "its version is %d, not %d: update this process, or, if no other is newer, enqueue the work again",
			sealed[0], sealVersion)
	}
	idLen := int(sealed[1])
	if len(sealed) < 2+idLen {
		return refuse(ErrSealed, "it is cut short: enqueue the work again")
	}
	keyID, sealed := string(sealed[2:2+idLen]), sealed[2+idLen:]
	if checkKeyID(keyID) != nil {
		return refuse(ErrSealed, "its key's id is damaged: enqueue the work again")
	}
	if s != nil {
		aead = s.keys[keyID]
	}
	if aead == nil {
		return refuse(errUnknownKey, "add key %q to the Keyring of this process", keyID)
	}
	return aead, sealed, nil
}

// associated is what a sealed form belongs to. The lengths make it unambiguous.
func (s *sealer) associated(header []byte, kind string, of sealedOf) []byte {
	var b []byte
	for _, part := range []string{string(header), s.queue, kind, of.id, of.key, of.name, of.principal} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}
