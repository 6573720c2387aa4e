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

// BenchmarkAcquire is one Acquire and its Release; cpu-ns is this process's time on a processor. The calls for distinct keys meet in
// pipelines.
func BenchmarkAcquire(b *testing.B) {
	for name, callers := range map[string]int{"uncontended": 1, "handed over": 64, "distinct keys": 64} {
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
			for i := range callers {
				key := "k"
				if name == "distinct keys" {
					key = fmt.Sprint(i)
				}
				all.Go(func() {
					for left.Add(-1) >= 0 {
						lease, err := l.Acquire(context.Background(), key)
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
