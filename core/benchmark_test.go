package core_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// BenchmarkDistinctKeys is 64 goroutines that never want the same key: their calls meet in pipelines.
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

// BenchmarkAcquire is one Acquire and its Release; cpu-ns is this process's time on a processor.
func BenchmarkAcquire(b *testing.B) {
	for name, callers := range map[string]int{"uncontended": 1, "handed over": 64} {
		b.Run(name, func(b *testing.B) {
			l, err := core.New(redistest.Real(b).Client(b))
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, l.Close()) })
			var left atomic.Int64
			left.Store(int64(b.N))
			var all sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu()
			for range callers {
				all.Go(func() {
					for left.Add(-1) >= 0 {
						lease, err := l.Acquire(context.Background(), "k")
						if err == nil {
							err = lease.Release(context.Background())
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
