package core

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"time"
)

// NeverPoll makes waiting calls rely on being woken.
func (l *Locker) NeverPoll() { l.waiters.config.Poll = time.Hour }

// Listening reports whether the Locker's subscription is up, and whoever waited for
// that was told.
func (l *Locker) Listening() bool { return l.store.listening() }

// LookAgain has every line ask again, as a new subscription does.
func (l *Locker) LookAgain() { (*storeEvents)(l).lookAgain() }

// InformedCalls is how many calls wait and know that their key is held.
func (l *Locker) InformedCalls() (n int) {
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	for _, q := range l.waiters.queues {
		n += q.Informed()
	}
	return n
}

// HeardReserved reports whether the Locker was told of late that key is reserved.
func (l *Locker) HeardReserved(key string) bool {
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	return l.waiters.reserved.of(key, time.Now())
}

// RenewalTime is when a lease is renewed.
var RenewalTime = renewalTime

// SentinelLifetime is how long a connection for renewals is used with Sentinel.
const SentinelLifetime = sentinelLifetime

// RecordName is the name in Redis of a key's record.
var RecordName = recordName

// Scripts are the Lua scripts as Redis gets them, by the names of their files.
var Scripts = map[string]string{
	"acquire": acquireScript.Source(), "renew": renewScript.Source(), "release": releaseScript.Source(),
	"reserve": reserveScript.Source(), "unreserve": unreserveScript.Source(),
	"admit": admitScript.Source(), "acquireall": acquireAllScript.Source(), "downgrade": downgradeScript.Source(),
	"raise": raiseScript.Source(), "publish": publishScript.Source(), "refresh": refreshScript.Source(),
	"force": forceScript.Source(), "inspect": inspectScript.Source(),
}

// ParseToken reports what is wrong with a token.
func ParseToken(token string) error {
	_, err := parseToken(token)
	return err
}

// TokenFields is what a token says.
type TokenFields struct {
	Prefix, Key, Entry string
	First, Used        int64
	TTL                time.Duration
}

// NewToken writes a token, valid or not.
func NewToken(f TokenFields) string {
	return token{prefix: f.Prefix, key: f.Key, entry: f.Entry, first: f.First, used: f.Used, ttl: f.TTL}.String()
}

// Sealed makes a token whose fields are body, with a checksum that is right.
func Sealed(body string) string {
	b := binary.BigEndian.AppendUint32([]byte(body), crc32.ChecksumIEEE([]byte(body)))
	return tokenVersion + base64.RawURLEncoding.EncodeToString(b)
}

// Batchers are those of a Cluster's nodes, by address. Each tells how many goroutines it has.
func Batchers(l *Locker) map[string]func() int {
	d := l.store.(*deployment)
	d.batchersMu.Lock()
	defer d.batchersMu.Unlock()
	all := map[string]func() int{}
	for node, n := range d.batchers {
		if node != nil {
			all[node.Options().Addr] = n.group.Goroutines
		}
	}
	return all
}

// LookAtNodes has the next call look for nodes that serve no slots any more.
func LookAtNodes(l *Locker) { l.store.(*deployment).looked.Store(0) }

// WaitForNodes sets how long a quorum waits for its nodes.
func (l *Locker) WaitForNodes(d time.Duration) { l.store.(*quorum).timeout = d }
