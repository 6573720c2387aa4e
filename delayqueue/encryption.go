package delayqueue

import (
	"fmt"
	"strings"

	"github.com/perkey-go/perkey/internal/keyring"
)

// ErrSealed means that the stored data of a message cannot be opened with the queue's [Keyring]: it is not sealed, is sealed
// under a key that the Keyring lacks, belongs to another message, or is damaged.
var ErrSealed = keyring.ErrSealed

// Keyring has the keys of [WithEncryption], by their ids. A key is 32 random bytes, not a password. An id is 1 to 32 letters,
// digits, dots, underscores and hyphens; it is not secret, and is stored beside what the key has sealed.
//
// To rotate, add the new key to the Keyring of every process, then make it Current everywhere, and remove the old key when
// nothing it sealed is left: after the longest age plus the longest retention. Never use an id for a second key.
//
// Rotate before a key has sealed 2^32 times: nonces are random, and NIST SP 800-38D, section 8.3, allows no more. The payload,
// the result and each cause of a message count, in all queues and processes that share the key.
//
// A Keyring is printed, logged and marshaled without its keys. The exception is
// package fmt, given a struct with a Keyring in an unexported field.
//
//	type Keyring struct {
//		// Current is the id of the key that seals. With AcceptUnsealed it may be empty: nothing is sealed yet.
//		Current string
//		// Keys are the keys by their ids. Each opens what it has sealed, whichever is Current.
//		Keys map[string][]byte
//		// AcceptUnsealed runs messages that are not sealed, so that encryption can be switched on while such messages are
//		// stored. Meanwhile anyone with write access to Redis can forge messages: switch it off when the last unsealed
//		// message is gone, after the longest age.
//		AcceptUnsealed bool
//	}
//
// One Keyring may be given to queues and to an idempotency.Store.
type Keyring = keyring.Keyring

// WithEncryption has the queue seal payloads, results and causes with AES-256-GCM before they are sent to Redis. Read access to
// Redis does not reveal them; write access cannot forge them, change them, or move them to another message or queue name.
// Default: they are stored as they are.
//
// Ids, lock keys, names and principals are not hidden, but a payload is bound to them: it does not
// open under others. Times, counters and sizes are neither hidden nor bound. With write access to Redis, messages can be
// deleted, repeated and reordered, and an earlier payload of the same id can be restored. Queues that must not
// run each other's messages, such as those of two prefixes, need different keys. The Worker's log of how claims end
// has the types of errors in place of their texts, which the [Observer] gets.
//
// All processes of the queue need it, with the same keys under the same ids. Once a process has used the queue with a Current key, the
// queue is encrypted for good. A process without it then stores and runs nothing ([ErrOtherEncryption]), after at most a
// minute if it was running before; but it may list, count, cancel, redrive, purge and pause.
//
// Encryption is switched on in three deployments, each finished before the next begins: with Keyring.Keys and AcceptUnsealed,
// which reads what is sealed and seals nothing; then with Current too; and without AcceptUnsealed when the last unsealed message,
// dead letter and result is gone. If the queue is empty, the last one is enough; otherwise such a process is refused
// (ErrOtherEncryption) where none has sealed before. A worker never runs a message that it cannot open, or that is not sealed
// unless it has AcceptUnsealed. It hands it back ([ErrSealed]) to those that may, and makes a dead letter of it before it expires.
//
// Encryption cannot be switched off: enqueue to a queue with a new name, and keep workers on the old one until it
// is empty. Locks hold across the two queues, the order of a key's messages does not.
func WithEncryption(keys Keyring) Option {
	keys = keyring.Clone(keys) // the Option may be used long after
	return func(q *settings) (err error) {
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

// sealer seals what a queue stores. A nil one leaves it as it is, but for what is sealed.
type sealer struct {
	queue string
	ring  *keyring.Sealer
}

// keys are the queue's, if it has any, and its name.
func (s *sealer) keys() (ring *keyring.Sealer, queue string) {
	if s == nil {
		return nil, ""
	}
	return s.ring, s.queue
}

// seals reports whether new data is sealed.
func (s *sealer) seals() bool { return s != nil && s.ring.Seals() }

func newSealer(queue string, keys Keyring) (*sealer, error) {
	s, err := keyring.New(keys)
	if err != nil {
		return nil, invalidOption("WithEncryption: %v", err)
	}
	return &sealer{queue, s}, nil
}

// maxSealed is the longest string that Redis takes, unless configured.
const maxSealed = 512 << 20

// overhead is by how many bytes the sealed form is longer, at most.
func (s *sealer) overhead() int {
	if s == nil {
		return 0
	}
	return keyring.Overhead
}

// seal seals plain, data of the given kind that belongs to a message.
func (s *sealer) seal(kind string, of sealedOf, plain []byte) ([]byte, error) {
	if s == nil {
		return plain, nil
	}
	if len(plain) > maxSealed-keyring.Overhead {
		return nil, fmt.Errorf("delayqueue: %s of message %q: %w: %d bytes, at most %d can be sealed",
			kind, of.id, ErrPayloadTooLarge, len(plain), maxSealed-keyring.Overhead)
	}
	return s.ring.Seal(plain, s.queue, kind, of.id, of.key, of.name, of.principal), nil
}

// open is the inverse of seal. Its errors match ErrSealed, and show nothing of
// what is stored but the key's id.
func (s *sealer) open(kind string, of sealedOf, stored []byte) (plain []byte, err error) {
	ring, queue := s.keys()
	if plain, err = ring.Open(stored, queue, kind, of.id, of.key, of.name, of.principal); err != nil {
		return nil, fmt.Errorf("delayqueue: %s of message %q: %w", kind, of.id, err)
	}
	return plain, nil
}

// sealed is seal for what is bounded far below what Redis takes; nil if there is none.
func (s *sealer) sealed(kind string, of sealedOf, plain []byte) []byte {
	if len(plain) == 0 {
		return nil
	}
	stored, _ := s.seal(kind, of, plain)
	return stored
}

// openPayload opens what is stored of a message's payload.
func (s *sealer) openPayload(of sealedOf, stored []byte) (trace string, payload []byte, err error) {
	if payload, err = s.open(kindPayload, of, stored); err == nil {
		trace, payload = splitTrace(payload)
	}
	return trace, payload, err
}

// cause opens a cause. One that a script wrote is not sealed.
func (s *sealer) cause(of sealedOf, cause string) string {
	if s == nil || !strings.HasPrefix(cause, keyring.Magic) {
		return cause
	}
	opened, err := s.open(kindCause, of, []byte(cause))
	if err != nil {
		return err.Error()
	}
	return string(opened)
}
