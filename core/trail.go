package core

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// maxTrail is how many leases a trail names.
const maxTrail = 8

// Trail names the leases that ctx works under, the innermost first and eight at most, in up to 303
// printable bytes. Send it along with a call to a service that takes keys too; that passes it to
// [Locker.TrailHolds]. It is empty if ctx works under no lease.
//
// It consists of hashes: a reader who can guess a key can tell that it is held. It lets nobody use
// or release a lease.
func Trail(ctx context.Context) string {
	var marks []string
	inner, _ := LeaseFrom(ctx)
	for l := inner; l != nil && len(marks) < maxTrail; l = l.outer {
		if l.reentered == nil {
			marks = append(marks, trailMark(trailHash(l.grant.locker.id), l.Key()))
		}
	}
	return strings.Join(marks, ",")
}

// TrailHolds reports whether the key is held under one of the leases that the trail names. A call that
// was sent along with the trail, and needs the key exclusively, would then wait for its own sender.
// The trail comes from outside: it may be any text. Redis is asked once, and only if the trail
// names a lease on this key.
func (l *Locker) TrailHolds(ctx context.Context, key, trail string) (bool, error) {
	if len(trail) > 2*markLen*maxTrail {
		return false, nil
	}
	for mark := range strings.SplitSeq(trail, ",") {
		locker, _, _ := strings.Cut(mark, ".")
		if mark != trailMark(locker, key) {
			continue
		}
		info, err := l.Inspect(ctx, key)
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(info.Holders, func(h Holder) bool { return trailHash(h.Locker) == locker }), nil
	}
	return false, nil
}

// markLen is the length of a mark.
const markLen = 2*trailHashLen + 1

// trailMark names the lease on a key of a Locker. Its id is random, so the same key has another hash under another Locker.
func trailMark(locker, key string) string { return locker + "." + trailHash(locker+"\x00"+key) }

const trailHashLen = 18

func trailHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:trailHashLen/2])
}
