package core_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// BenchmarkDistinctKeys is 64 goroutines that never want the same key: their calls meet in
// pipelines.
func BenchmarkDistinctKeys(b *testing.B) {
	locker, err := core.New(redistest.Real(b).Client(b))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, locker.Close()) })
	var workers atomic.Int64
	b.SetParallelism(32)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		key := fmt.Sprint("key", workers.Add(1))
		for pb.Next() {
			lease, err := locker.Acquire(b.Context(), key)
			if err == nil {
				err = lease.Release(b.Context())
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}
