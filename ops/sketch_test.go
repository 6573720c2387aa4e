package ops_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/ops"
)

// What Space-Saving promises: a weight is between the true one and the error above it, and no key with more than
// 1/size of all is missing.
func TestSketch_FindsTheHotKeys(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		zipf := rand.NewZipf(random, 1.1+random.Float64(), 1, 100_000)
		var sketch ops.Sketch
		now, exact, total := time.Unix(0, 0), map[string]float64{}, 0.0
		for range 50_000 {
			key, weight := fmt.Sprint(zipf.Uint64()), float64(1+random.IntN(5))
			sketch.Add(now, key, weight)
			exact[key] += weight
			total += weight
		}
		top := sketch.Top(now)
		require.Len(t, top, ops.SketchSize)
		found := map[string]bool{}
		for i, hot := range top {
			found[hot.Key] = true
			assert.GreaterOrEqual(t, hot.Weight, exact[hot.Key])
			assert.LessOrEqual(t, hot.Weight-hot.Error, exact[hot.Key])
			assert.LessOrEqual(t, hot.Error, total/ops.SketchSize)
			assert.True(t, i == 0 || hot.Weight <= top[i-1].Weight, "the hottest first")
		}
		for key, weight := range exact {
			assert.False(t, weight > total/ops.SketchSize && !found[key], "%s with %v of %v", key, weight, total)
		}
	}
}

func TestSketch_ForgetsWhatWasHot(t *testing.T) {
	t.Parallel()
	var sketch ops.Sketch
	now := time.Unix(0, 0)
	sketch.Add(now, "was hot", 1000)
	sketch.Add(now, "once", 0.5)
	now = now.Add(4 * time.Minute)
	sketch.Add(now, "is hot", 100)
	top := sketch.Top(now)
	require.Len(t, top, 3)
	assert.Equal(t, ops.HotKey{Key: "is hot", Weight: 100}, top[0])
	assert.Equal(t, ops.HotKey{Key: "was hot", Weight: 62.5}, top[1])
	assert.Empty(t, sketch.Top(now.Add(24*time.Hour)))
	sketch.Add(now.Add(48*time.Hour), "again", 1)
	assert.Len(t, sketch.Top(now.Add(48*time.Hour)), 1)
}
