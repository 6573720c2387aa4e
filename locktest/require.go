package locktest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
)

// RequireHeld fails the test unless, within ten seconds, somebody holds key.
func (r *Redis) RequireHeld(t TB, key string) {
	t.Helper()
	r.require(t, key, "is held", func(k *core.KeyInfo) bool { return !k.Free() })
}

// RequireFree fails the test unless, within ten seconds, nobody holds key or waits for it, and it
// is not reserved.
func (r *Redis) RequireFree(t TB, key string) {
	t.Helper()
	r.require(t, key, "is free", func(k *core.KeyInfo) bool { return k.Free() && k.Waiting == 0 && k.Reserved == 0 })
}

// RequireWaiting fails the test unless, within ten seconds, a call waits for key in Redis. A call
// that waits for another one of its own Locker waits in its process, and does not count.
func (r *Redis) RequireWaiting(t TB, key string) {
	t.Helper()
	r.require(t, key, "is waited for", func(k *core.KeyInfo) bool { return k.Waiting > 0 })
}

// RequireLost fails the test unless ctx ends because its lease was lost, within ten
// seconds. ctx is that of a lease, or of work that runs under one.
func RequireLost(t TB, ctx context.Context) { //nolint:revive // as the test's helpers do, it takes the test first
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(waitTimeout):
		t.Fatalf("locktest: the lease was not lost within %s", waitTimeout)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, core.ErrLeaseLost) {
		t.Fatalf("locktest: the ctx ended, but not because its lease was lost: %v", cause)
	}
}

func (r *Redis) require(t TB, key, what string, ok func(*core.KeyInfo) bool) {
	t.Helper()
	var seen *core.KeyInfo
	done, err := eventually(func(ctx context.Context) (bool, error) {
		info, err := r.other.Inspect(ctx, key)
		if err != nil {
			return false, err
		}
		seen = info
		return ok(info), nil
	})
	if done {
		return
	}
	if err != nil {
		t.Fatalf("locktest: require that %q %s: %v", key, what, err)
	}
	t.Fatalf("locktest: require that %q %s: %s", key, what, describe(seen))
}

// describe says in one line who holds a key.
func describe(k *core.KeyInfo) string {
	if k == nil {
		return "redis did not answer"
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%d hold it", k.Held)
	for _, h := range k.Holders {
		fmt.Fprintf(&s, ", %s %q since %s", h.Locker, strings.TrimSpace(h.Name+" "+h.ID), h.Since.Format(time.TimeOnly))
	}
	fmt.Fprintf(&s, "; %d wait", k.Waiting)
	if k.Reserved > 0 {
		fmt.Fprintf(&s, "; it is reserved for %s", k.Reserved.Round(time.Millisecond))
	}
	return s.String()
}
