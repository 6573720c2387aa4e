package core_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestLostLease_IsReportedOnce(t *testing.T) {
	byDefault := testbed.CaptureLog(t) // of both Redises
	redistest.EachAlone(t, func(t *testing.T, env *redistest.Env) {
		key := "order:" + t.Name()
		given, mine := &testbed.Log{}, &lossCounter{}
		for name, test := range map[string]struct {
			opts                      []core.Option
			defaults, given, observed int
		}{
			"nothing given":     {nil, 1, 0, 0},
			"a logger":          {[]core.Option{core.WithLogger(given.Logger())}, 0, 1, 0},
			"silence":           {[]core.Option{core.WithLogger(slog.New(slog.DiscardHandler))}, 0, 0, 0},
			"silence, observer": {[]core.Option{core.WithObserver(core.NopObserver{})}, 0, 0, 0},
			"an observer":       {[]core.Option{core.WithObserver(mine)}, 0, 0, 1},
			"both":              {[]core.Option{core.WithObserver(mine), core.WithLogger(given.Logger())}, 0, 0, 1},
		} {
			locker := lockerOn(t, env.Client(t), env.Prefix, test.opts...)
			counts := func() []int {
				lost := `"perkey: lease lost" key=` + key + " "
				return []int{strings.Count(byDefault.String(), lost), strings.Count(given.String(), lost), int(mine.lost.Load())}
			}
			before := counts()
			lease := acquire(t, locker, key, core.Named("pay", ""))
			require.True(t, force(t, locker, key, lease.Fence()))
			<-lease.Context().Done()
			require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
			require.NoError(t, locker.Close())
			after := counts()
			for i := range after {
				after[i] -= before[i]
			}
			require.Equal(t, []int{test.defaults, test.given, test.observed}, after, name)
			if name == "nothing given" {
				require.Contains(t, byDefault.String(), "name=pay")
			}
		}
	})
}

// An outage in which thousands of leases are lost does not write thousands of lines.
func TestLostLeases_AreLoggedOneByOneUpToABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &testbed.Log{}
		o := core.DefaultObserver(log.Logger())
		lose := func(n int) {
			var losing sync.WaitGroup
			for i := range n {
				losing.Go(func() { o.OnLost(t.Context(), core.Lost{Key: fmt.Sprint("k", i), Cause: core.ErrLeaseLost}) })
			}
			losing.Wait()
		}
		lose(1000)
		require.Equal(t, 10, strings.Count(log.String(), "perkey: lease lost"))
		require.Equal(t, 1, strings.Count(log.String(), "more leases are lost"))
		time.Sleep(time.Second)
		lose(1)
		require.Equal(t, 11, strings.Count(log.String(), "perkey: lease lost"))
		require.Equal(t, 1, strings.Count(log.String(), "more leases are lost"))
	})
}
