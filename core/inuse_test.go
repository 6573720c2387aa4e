package core_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// For the race detector: a connection that go-redis opens may change the client's options.
func TestLocker_ALockerCanBeMadeOnAClientThatIsInUse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for range 20 {
			rdb := env.Client(t)
			var use sync.WaitGroup
			use.Go(func() { assert.NoError(t, rdb.Ping(t.Context()).Err()) })
			l, err := core.New(rdb, core.WithPrefix(env.Prefix))
			require.NoError(t, err)
			use.Wait()
			require.NoError(t, l.Do(t.Context(), "k", func(context.Context) error { return nil }))
			require.NoError(t, l.Close())
		}
	})
}
