package idempotency

import "github.com/perkey-go/perkey/internal/keyring"

// ErrSealed means that an outcome cannot be opened with the Store's Keyring: it is not sealed, sealed under a key that
// the Keyring lacks, of another record, or damaged. Its work was finished, and does not run again.
var ErrSealed = keyring.ErrSealed

// Keyring holds the keys of WithEncryption: it is delayqueue.Keyring, where its fields and the rotation of keys
// are described. Of a Store each outcome counts towards the 2^32 seals of a key. An old key is removed when the longest TTL
// has passed since another one became Current, and AcceptUnsealed has outcomes used that are not sealed, for as long as there are such.
type Keyring = keyring.Keyring

// WithEncryption has the Store seal outcomes with AES-256-GCM before they go to Redis, so that who reads Redis does
// not read them, and who writes there cannot make them up, change them, or move them to another record. Default: they are
// stored as they are.
//
// Names, fingerprints and tickets are not hidden: names and fingerprints are hashes, but who can guess
// a whole request can tell from its fingerprint that it was made. Who writes to Redis can remove a record, so that its work
// runs again.
//
// All processes that share the records need it, and the same keys under the same ids. One without stores outcomes
// as they are, and does not open the others' (ErrSealed). To switch it on, give the Keyring to all processes
// with AcceptUnsealed, and take that away when the longest TTL has passed since.
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
