package idempotency

import "github.com/perkey-go/perkey/internal/keyring"

// ErrSealed means that an outcome cannot be opened with the Store's Keyring: it is not sealed, sealed under a key that
// the Keyring lacks, of another record, or damaged. Its work was finished, and does not run again.
var ErrSealed = keyring.ErrSealed

// Keyring holds the keys of WithEncryption: it is delayqueue.Keyring, where its fields and the rotation of keys are
// described. In a Store each outcome counts towards the 2^32 seals of a key. An old key can be removed when the longest
// TTL has passed since another one became Current. AcceptUnsealed lets the Store use outcomes that are not sealed.
type Keyring = keyring.Keyring

// WithEncryption makes the Store seal outcomes with AES-256-GCM: whoever reads Redis cannot read
// them, and whoever writes to Redis cannot forge them, change them, or move them to another record.
// Default: outcomes are stored as they are.
//
// Names, fingerprints and tickets are not hidden: names and fingerprints are hashes, but a fingerprint confirms a
// correct guess of the whole request. Whoever writes to Redis can remove a record, so that its work runs again.
//
// All processes that share the records need it, and the same keys under the same ids. A process
// without it stores outcomes as they are, and cannot open sealed ones (ErrSealed). To switch it on,
// first give all processes the Keyring with AcceptUnsealed and no Current, which seals nothing; then
// set Current; and remove AcceptUnsealed when the longest TTL has passed.
func WithEncryption(keys Keyring) Option {
	keys = keyring.Clone(keys) // the Option may be used long after
	return func(s *Store) (err error) {
		if s.sealer, err = keyring.New(keys); err != nil {
			return invalid("WithEncryption: %v", err)
		}
		return nil
	}
}

// seal makes the form of an outcome that is stored.
func (s *Store) seal(w Work, outcome []byte) []byte {
	return s.sealer.Seal(outcome, s.sealedOf(w)...)
}

// open is the inverse of seal.
func (s *Store) open(w Work, stored string) ([]byte, error) {
	return s.sealer.Open([]byte(stored), s.sealedOf(w)...)
}

// sealedOf is what an outcome belongs to. No queue has an empty name, so a Keyring may be shared with queues.
func (s *Store) sealedOf(w Work) []string {
	return []string{"", "outcome", s.name(w.Name), w.Fingerprint}
}
