package idempotency

import "github.com/perkey-go/perkey/internal/keyring"

// ErrSealed means that an outcome cannot be opened with the Store's [Keyring]: it is not sealed, is sealed under a key that
// the Keyring lacks, belongs to another record, or is damaged. Its work was finished, and does not run again.
var ErrSealed = keyring.ErrSealed

// Keyring has the keys of [WithEncryption]. It is delayqueue.Keyring, which documents its fields and the rotation of
// keys. For a Store, each outcome counts towards the 2^32 seals of a key. Remove an old key when the longest TTL
// has passed since another one became Current. AcceptUnsealed accepts outcomes that are not sealed, for as long as there are some.
type Keyring = keyring.Keyring

// WithEncryption has the Store seal outcomes with AES-256-GCM before they are sent to Redis. Read access to Redis
// does not reveal them; write access cannot forge them, change them, or move them to another record. Default: they are
// stored as they are.
//
// Names, fingerprints and tickets are not hidden. Names and fingerprints are hashes, but a reader who can guess
// a whole request can tell from its fingerprint that it was made. With write access to Redis a record can be removed, so that
// its work runs again.
//
// All processes that share the records need it, with the same keys under the same ids. A process without it stores outcomes
// as they are, and cannot open the sealed ones ([ErrSealed]). To switch encryption on, give the Keyring to all processes
// with AcceptUnsealed, and remove AcceptUnsealed when the longest TTL has passed since.
func WithEncryption(keys Keyring) Option {
	keys = keyring.Clone(keys) // the Option may be used long after
	return func(s *Store) (err error) {
		if s.sealer, err = keyring.New(keys); err != nil {
			return invalid("WithEncryption: %v", err)
		}
		return nil
	}
}

// seal returns an outcome as it is stored.
func (s *Store) seal(w Work, outcome []byte) []byte {
	return s.sealer.Seal(outcome, s.sealedOf(w)...)
}

// open is the inverse of seal.
func (s *Store) open(w Work, stored string) ([]byte, error) {
	return s.sealer.Open([]byte(stored), s.sealedOf(w)...)
}

// sealedOf is what an outcome is bound to. No queue has an empty name, so a Keyring may be shared
// with queues.
func (s *Store) sealedOf(w Work) []string {
	return []string{"", "outcome", s.name(w.Name), w.Fingerprint}
}
