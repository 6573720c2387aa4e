package console

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisView is what the servers say about themselves.
type redisView struct {
	Took    time.Duration // of the slowest answer
	Servers []serverView
}

type serverView struct {
	Addr, Version, Role, Policy string
	Used, Max                   int64
	Clients, OpsPerSecond       int64
	Replicas, Evicted           int64
}

// Full is how much of its memory a server uses, in percent; 0 if it has no limit.
func (s serverView) Full() int64 {
	if s.Max == 0 {
		return 0
	}
	return 100 * s.Used / s.Max
}

// readRedis asks each primary.
func readRedis(ctx context.Context, rdb redis.UniversalClient) (v redisView, err error) {
	var mu sync.Mutex
	one := func(ctx context.Context, c *redis.Client) error {
		sent := time.Now()
		text, err := c.Info(ctx).Result()
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			v.Took = max(v.Took, time.Since(sent))
			v.Servers = append(v.Servers, serverOf(c.Options().Addr, text))
		}
		return err
	}
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, one)
	case *redis.Client:
		err = one(ctx, c)
	default:
		err = errors.ErrUnsupported
	}
	slices.SortFunc(v.Servers, func(a, b serverView) int { return cmp.Compare(a.Addr, b.Addr) })
	return v, err
}

func serverOf(addr, text string) serverView {
	field := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			field[name] = value
		}
	}
	n := func(name string) int64 {
		i, _ := strconv.ParseInt(field[name], 10, 64) // a field that is missing is 0
		return i
	}
	return serverView{
		Addr: addr, Version: field["redis_version"], Role: field["role"], Policy: field["maxmemory_policy"],
		Used: n("used_memory"), Max: n("maxmemory"), Clients: n("connected_clients"), OpsPerSecond: n("instantaneous_ops_per_sec"),
		Replicas: n("connected_slaves"), Evicted: n("evicted_keys"),
	}
}
