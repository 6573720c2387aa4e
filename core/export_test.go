package core

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/store"
)

// NeverPoll makes waiting calls rely on being woken.
func (l *Locker) NeverPoll() { l.waiters.config.Poll = time.Hour }

// Listening reports whether the Locker's subscription is up, and whoever waited for that was told.
func (l *Locker) Listening() bool { return l.store.Listening() }

// KnowsContention reports whether only calls of other processes are known to wait for key.
func (l *Locker) KnowsContention(key string) bool {
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	return l.waiters.wanted[key] != 0
}

// Contended is for how many keys that is known.
func (l *Locker) Contended() int {
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	return len(l.waiters.wanted)
}

// HearWanted has the Locker hear that calls of other processes wait behind a grant of key.
func (l *Locker) HearWanted(key string, fence int64) { l.waiters.wantedBy(key, fence) }

// LookAgain has every wait queue ask again, as a new subscription does.
func (l *Locker) LookAgain() { (*storeEvents)(l).LookAgain() }

// InformedCalls is how many calls wait and know that their key is held.
func (l *Locker) InformedCalls() (n int) {
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	for _, q := range l.waiters.queues {
		n += q.Informed()
	}
	return n
}

// Queues is how many wait queues there are.
func (l *Locker) Queues() int {
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	return len(l.waiters.queues)
}

// HeardReserved reports whether the Locker was told lately that key is reserved.
func (l *Locker) HeardReserved(key string) bool {
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	_, ok := l.waiters.reserved.said[key]
	return ok
}

// RenewalTime is when a lease is renewed.
var RenewalTime = renewalTime

// RecordName is the name in Redis of a key's record.
var RecordName = store.RecordName

// Scripts are the Lua scripts as Redis gets them, by the names of their files.
var Scripts = store.Sources

// ParseToken reports what is wrong with a token.
func ParseToken(token string) error {
	_, err := parseToken(token)
	return err
}

// TokenFields is what a token says.
type TokenFields struct {
	Prefix, Key, Owner string
	First, Used        int64
	TTL                time.Duration
}

// NewToken writes a token, valid or not.
func NewToken(f TokenFields) string {
	return token{prefix: f.Prefix, key: f.Key, owner: f.Owner, first: f.First, used: f.Used, ttl: f.TTL}.String()
}

// Sealed makes a token whose fields are body, with a checksum that is right.
func Sealed(body string) string {
	b := binary.BigEndian.AppendUint32([]byte(body), crc32.ChecksumIEEE([]byte(body)))
	return tokenVersion + base64.RawURLEncoding.EncodeToString(b)
}

// WaitForNodes makes a quorum that was not used yet wait so long for its nodes.
func (l *Locker) WaitForNodes(d time.Duration, clients []redis.UniversalClient) {
	l.store.Close()
	c := l.storeConfig()
	c.NodeTimeout = d
	l.use(store.NewQuorum(clients, c))
}
