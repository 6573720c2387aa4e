package core_test

import (
	"context"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// crowdKey is a key that many want.
const crowdKey = "k"

// ownServer is a redis-server that nobody else uses.
func ownServer(t *testing.T) (*redistest.Env, *redis.Client) {
	t.Helper()
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "p", Real: true}
	return env, env.Client(t)
}

var callsIn = regexp.MustCompile(`cmdstat_(\w+)(?:\|\w+)?:calls=(\d+)`)

// commandsSince returns how many scripts, and how many commands from clients and
// scripts together, Redis ran since the last time it was asked.
func commandsSince(t *testing.T, admin *redis.Client) (scripts, all int) {
	t.Helper()
	for _, m := range callsIn.FindAllStringSubmatch(admin.Info(t.Context(), "commandstats").Val(), -1) {
		n, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		switch m[1] {
		case "info", "config":
			continue
		case "eval", "evalsha":
			scripts += n
		}
		all += n
	}
	require.NoError(t, admin.ConfigResetStat(t.Context()).Err())
	return scripts, all
}

// eachOf calls f for each of n, some at a time.
func eachOf(n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 32 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// lossCounter counts what was lost.
type lossCounter struct {
	core.NopObserver
	lost, batches, renewed, failed atomic.Int64
}

func (o *lossCounter) OnLost(context.Context, core.Lost) { o.lost.Add(1) }

func (o *lossCounter) OnRenewed(_ context.Context, r core.Renewed) {
	o.batches.Add(1)
	o.renewed.Add(int64(r.Leases))
	if r.Err != nil {
		o.failed.Add(1)
	}
}
