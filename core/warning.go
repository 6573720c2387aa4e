package core

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Warning reports a deployment that keeps locks less well than it could. No call
// fails because of it.
type Warning struct {
	Kind WarningKind
	// Node is the address of the server that it is about; empty when it is about
	// none in particular.
	Node string
	// Detail says what was found.
	Detail string
	// Err is the error behind it, if any.
	Err error
	// Resolved: what was warned of is over.
	Resolved bool
}

// WarningKind is what a Warning is about.
type WarningKind string

const (
	// WarnEviction reports that the server's maxmemory-policy lets it evict the records of held
	// keys. Records have a TTL, so the volatile policies do as well. It is reported once
	// for each primary, after the Locker's first lease. Set noeviction.
	WarnEviction WarningKind = "eviction"
	// WarnEvictionUnknown reports that the server's maxmemory-policy could not be read.
	WarnEvictionUnknown WarningKind = "eviction unknown"
	// WarnNoSubscription reports that Redis cannot be subscribed to, or denies that or PUBLISH, or, where
	// Sentinel names the primary, that the subscription could not follow the client's
	// commands there. Waiting calls poll, and a holder learns of ForceRelease at its next
	// renewal. It is reported once, and again, as resolved, when there is a subscription.
	WarnNoSubscription WarningKind = "no subscription"
	// WarnUnreachable reports that a server does not answer, or serves nobody: calls for its keys
	// fail at once with ErrUnavailable until it answers. It is reported once, and again, as
	// resolved, when it does.
	WarnUnreachable WarningKind = "unreachable"
)

// checkEviction warns of every primary that may evict records.
func (l *Locker) checkEviction() {
	if _, nobody := l.observer.(NopObserver); nobody {
		return
	}
	ctx := &callContext{Context: context.Background(), gone: l.closing}
	warnings := l.store.evictions(ctx)
	if ctx.Err() != nil {
		return // what failed may have failed because the Locker closes
	}
	for _, w := range warnings {
		l.observer.OnWarning(context.Background(), w)
	}
}

// evictions implements store. It asks over the connections for renewals, so that no call waits
// for one.
func (d *deployment) evictions(ctx context.Context) (warnings []Warning) {
	cluster, ok := d.renewer.client().(*redis.ClusterClient)
	if !ok {
		if w, bad := evictionOf(ctx, d.renewer.client(), ""); bad {
			warnings = append(warnings, w)
		}
		return warnings
	}
	var mu sync.Mutex
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		w, bad := evictionOf(ctx, node, node.Options().Addr)
		mu.Lock()
		defer mu.Unlock()
		if bad {
			warnings = append(warnings, w)
		}
		return nil
	})
	if err != nil {
		warnings = append(warnings, Warning{Kind: WarnEvictionUnknown, Detail: "the primaries are not known", Err: err})
	}
	return warnings
}

// evictionOf reports what is to be warned of about a server, if anything. INFO is
// allowed more often than CONFIG.
func evictionOf(ctx context.Context, node redis.Cmdable, addr string) (w Warning, bad bool) {
	info, err := node.Info(ctx, "memory").Result()
	if err != nil {
		return Warning{Kind: WarnEvictionUnknown, Node: addr, Detail: "INFO memory failed", Err: err}, true
	}
	policy, limit := "", ""
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory_policy":
			policy = value
		case "maxmemory":
			limit = value
		}
	}
	switch policy {
	case "noeviction":
		return w, false
	case "":
		return Warning{Kind: WarnEvictionUnknown, Node: addr, Detail: "INFO memory does not tell the maxmemory-policy"}, true
	}
	detail := fmt.Sprintf("maxmemory-policy is %s: held keys can be evicted", policy)
	if limit == "0" {
		detail = fmt.Sprintf("maxmemory-policy is %s: held keys can be evicted once maxmemory is set", policy)
	}
	return Warning{Kind: WarnEviction, Node: addr, Detail: detail}, true
}
