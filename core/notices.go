package core

import (
	"hash/maphash"
	"sync"
	"time"
)

// notices tells channels of keys that are free: those of NotifyRelease.
type notices struct {
	mu     sync.Mutex
	notify map[string][]notification
	swept  time.Time
	// Counts announcements, of all keys that share a hash. A call that meets a
	// conflict registers only after Redis answered: if the count moved meanwhile,
	// what was announced may have been its key.
	announced [256]uint64
	seed      maphash.Seed
}

func newNotices() *notices {
	return &notices{notify: map[string][]notification{}, seed: maphash.MakeSeed()}
}

type notification struct {
	ch    chan<- string
	until time.Time
}

// notifyRelease has ch told when key is freed, until the holder's lease is over.
// If anything was announced since announced was counted, ch is told at once.
func (n *notices) notifyRelease(key string, ch chan<- string, announced uint64, remaining time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep()
	n.forget(key, func(one notification) bool { return one.ch == ch })
	if *n.count(key) != announced {
		send(ch, key)
		return
	}
	n.notify[key] = append(n.notify[key], notification{ch: ch, until: time.Now().Add(remaining + time.Second)})
}

// announcements returns the count of announcements so far for key.
func (n *notices) announcements(key string) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return *n.count(key)
}

// freed announces that key is free, or may be.
func (n *notices) freed(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*n.count(key)++
	for _, one := range n.notify[key] {
		send(one.ch, key)
	}
	delete(n.notify, key)
}

// count is the counter of announcements that key shares. Called with mu held.
func (n *notices) count(key string) *uint64 {
	return &n.announced[maphash.String(n.seed, key)%uint64(len(n.announced))]
}

// sweep forgets notifications whose announcement never came, at most once a
// second. Called with mu held.
func (n *notices) sweep() {
	now := time.Now()
	if now.Sub(n.swept) < time.Second {
		return
	}
	n.swept = now
	for key := range n.notify {
		n.forget(key, func(one notification) bool { return now.After(one.until) })
	}
}

// forget drops the notifications of key that match. Called with mu held.
func (n *notices) forget(key string, match func(notification) bool) {
	kept := n.notify[key][:0]
	for _, one := range n.notify[key] {
		if !match(one) {
			kept = append(kept, one)
		}
	}
	if len(kept) == 0 {
		delete(n.notify, key)
		return
	}
	n.notify[key] = kept
}

// freedAll makes everyone look again: announcements may have been missed.
func (n *notices) freedAll() {
	n.mu.Lock()
	keys := make([]string, 0, len(n.notify))
	for key := range n.notify {
		keys = append(keys, key)
	}
	for i := range n.announced {
		n.announced[i]++
	}
	n.mu.Unlock()
	for _, key := range keys {
		n.freed(key)
	}
}
