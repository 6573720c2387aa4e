package store

// Whether primaries may evict records.

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Evictions asks over the renewal client, so that no call waits for it.
func (d *deployment) Evictions(ctx context.Context) (warnings []Warning) {
	cluster, ok := d.renewer.Get().(*redis.ClusterClient)
	if !ok {
		if w, bad := evictionOf(ctx, d.renewer.Get(), ""); bad {
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

// evictionOf reports whether a server may evict records, or does not tell. INFO is allowed more
// often than CONFIG.
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
		return Warning{Kind: WarnEvictionUnknown, Node: addr, Detail: "INFO memory does not report the maxmemory-policy"}, true
	}
	detail := fmt.Sprintf("maxmemory-policy is %s: held keys can be evicted", policy)
	if limit == "0" {
		detail = fmt.Sprintf("maxmemory-policy is %s: held keys can be evicted once maxmemory is set", policy)
	}
	return Warning{Kind: WarnEviction, Node: addr, Detail: detail}, true
}
