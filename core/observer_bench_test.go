package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// BenchmarkObserver_Pair takes and releases one free key, with nobody told and with an
// observer that does nothing: what the events cost beside Redis.
func BenchmarkObserver_Pair(b *testing.B) {
	for name, opts := range map[string][]core.Option{
		"nobody":   nil,
		"observed": {core.WithObserver(newLedger())},
	} {
		b.Run(name, func(b *testing.B) {
			l := newLocker(b, redistest.Real(b), opts...)
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				lease, err := l.TryAcquire(ctx, "k")
				require.NoError(b, err)
				require.NoError(b, lease.Release(ctx))
			}
		})
	}
}
