package store

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// After a failover the clock of Redis may be behind: what a settlement claimed whose reply was lost has an
// earlier end than any by the clock before.
func TestSettle_SentAgainAfterTheClockWentBackBringsWhatItClaimed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		proxy := redistest.NewProxy(t, env.Addr)
		p := New(Settings{
			Client: redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: -1}), Prefix: env.Prefix, Name: "q", Retention: time.Hour,
			DeadRetention: time.Hour, MaxDepth: 10, MaxDepthPerKey: 10, MaxBytes: 1 << 20, MaxBytesPerKey: 1 << 20, MaxBytesPerPrincipal: 1 << 20,
			Begin: func(context.Context) error { return nil }, Idle: func(*Partition, time.Duration, bool) {},
		}).Partitions(1)[0]
		store := func(id string) {
			t.Helper()
			stored, err := p.Enqueue(t.Context(), Job{ID: id, MaxAge: time.Hour})
			require.NoError(t, err)
			require.True(t, stored.Now)
		}
		store("first")
		b, err := p.Claim(t.Context(), "one", time.Minute, 1)
		require.NoError(t, err)
		store("second")
		lost := false
		proxy.LoseReply(func(request []byte) bool {
			first := !lost && bytes.Contains(request, []byte(settleScript.Hash()))
			lost = lost || first
			return first
		})
		now := time.Now()
		p.clock.Store(&clock{now.Add(time.Hour).UnixMilli(), now}) // of the node that failed
		s := &Settlement{Message: b.Messages[0], Token: "one", Next: "two", Lease: time.Minute}
		for tries := 0; ; tries++ {
			if <-p.Settle(s); s.Err == nil {
				require.Positive(t, tries)
				break
			}
		}
		require.NotNil(t, s.Claimed, "it waits for the end of a claim that nobody knows")
		require.Equal(t, "second", s.Claimed.ID)
	})
}
