package core

import (
	"hash/maphash"
	"sync"
	"time"
)

// notifications tell the channels of [NotifyRelease] and the functions of [Guard.OnFree] that a key
// may be free.
type notifications struct {
	mu    sync.Mutex
	byKey map[string][]notification
	swept time.Time
	// counts are the numbers of releases, of all keys that share a hash. A call that meets a conflict
	// registers only after Redis has replied: if the count changed meanwhile, its key may
	// have been released.
	counts [256]uint64
	seed   maphash.Seed
}

func newNotifications() *notifications {
	return &notifications{byKey: map[string][]notification{}, seed: maphash.MakeSeed()}
}

// listener is a channel of [NotifyRelease] or a function of [Guard.OnFree]. A release notifies it
// once, however many of its calls were refused.
type listener struct {
	id   any // comparable; two listeners with one id are the same
	tell func(key string)
}

type notification struct {
	to    *listener
	until time.Time
}

// register has to notified when key is released, until the holder's lease is over. If key may have
// been released since releases returned known, it notifies at once.
func (n *notifications) register(key string, to *listener, known uint64, remaining time.Duration) {
	if n.registered(key, to, known, remaining) {
		return
	}
	to.tell(key)
}

func (n *notifications) registered(key string, to *listener, known uint64, remaining time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep()
	n.forget(key, func(one notification) bool { return one.to.id == to.id })
	if *n.count(key) != known {
		return false
	}
	n.byKey[key] = append(n.byKey[key], notification{to: to, until: time.Now().Add(remaining + time.Second)})
	return true
}

// releases is how often key, or one that shares its count, was freed so far.
func (n *notifications) releases(key string) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return *n.count(key)
}

// freed notifies the listeners of key, which may be free.
func (n *notifications) freed(key string) {
	n.mu.Lock()
	*n.count(key)++
	listeners := n.byKey[key]
	delete(n.byKey, key)
	n.mu.Unlock()
	for _, one := range listeners {
		one.to.tell(key)
	}
}

// released is called when a token was released in Redis. A token that did not hold the key, such as
// that of a call that waited, has freed nothing.
func (n *notifications) released(key string, owned bool) {
	if owned {
		n.freed(key)
	}
}

// count returns the counter of releases that key shares with others. Called with mu held.
func (n *notifications) count(key string) *uint64 {
	return &n.counts[maphash.String(n.seed, key)%uint64(len(n.counts))]
}

// sweep forgets notifications that are over without a release, at most once a second. Called with
// mu held.
func (n *notifications) sweep() {
	now := time.Now()
	if now.Sub(n.swept) < time.Second {
		return
	}
	n.swept = now
	for key := range n.byKey {
		n.forget(key, func(one notification) bool { return now.After(one.until) })
	}
}

// forget drops the notifications of key that match. Called with mu held.
func (n *notifications) forget(key string, match func(notification) bool) {
	rest := n.byKey[key][:0]
	for _, one := range n.byKey[key] {
		if !match(one) {
			rest = append(rest, one)
		}
	}
	if len(rest) == 0 {
		delete(n.byKey, key)
		return
	}
	n.byKey[key] = rest
}

// freedAll notifies all listeners: releases may have been missed.
func (n *notifications) freedAll() {
	n.mu.Lock()
	keys := make([]string, 0, len(n.byKey))
	for key := range n.byKey {
		keys = append(keys, key)
	}
	for i := range n.counts {
		n.counts[i]++
	}
	n.mu.Unlock()
	for _, key := range keys {
		n.freed(key)
	}
}
