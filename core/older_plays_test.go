//go:build soak

package core_test

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/history"
)

// mixedPlays are for clients of two versions on the same keys.
var mixedPlays = map[string]play{
	"refusals":     {change: func(w *workload) { w.Try = 100 }},
	"waiting":      {change: func(w *workload) { w.Try, w.MaxWait = 20, 400*time.Millisecond }},
	"readers":      {change: func(w *workload) { w.Modes, w.Try = readersAndWriters, 50 }},
	"permits":      {change: func(w *workload) { w.Modes, w.Try = sixOrOne, 50 }},
	"crashes":      {change: func(w *workload) { w.Abandon, w.Fixed, w.Keys = 20, 100, 4 }},
	"overruns":     {change: func(w *workload) { w.Overrun, w.Deaf, w.Try = 30, 70, 80 }},
	"lost replies": {change: func(w *workload) { w.Retries, w.Try = 3, 50 }, lost: true},
}

// While it is deployed, processes of this version and of the one before share their keys. Nobody is
// refused as unavailable, and no promise is broken.
func TestOlder_LockersOfTwoVersionsShareKeys(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(mixedPlays)) {
		t.Run(name, func(t *testing.T) {
			p := mixedPlays[name]
			var mu sync.Mutex
			var unavailable []error
			p.clients, p.older, p.many = 4, 2, 3
			p.unavailable = func(err error) {
				if refused := redis.Error(nil); errors.As(err, &refused) { // else the machine was slow
					mu.Lock()
					defer mu.Unlock()
					unavailable = append(unavailable, err)
				}
			}
			var counts history.Counts
			for seed := soakSeed(); counts.Ops < 400 || counts.Windows <= 10 || counts.Conflicts <= 20; seed++ {
				ops, rules := p.run(t, seed, 400*time.Millisecond, nil)
				_, _, violations := tell(ops, rules)
				counts.Add(history.Count(ops))
				for _, v := range violations {
					t.Errorf("seed %d: %s", seed, v)
				}
			}
			t.Logf("%+v, %d unavailable", counts, len(unavailable))
			require.Empty(t, unavailable)
		})
	}
}
