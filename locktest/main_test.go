package locktest_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/locktest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// each runs a test on the embedded Redis of New, and On a real one.
func each(t *testing.T, test func(t *testing.T, redis *locktest.Redis)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, locktest.New(t))
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		env := redistest.Real(t)
		test(t, locktest.On(t, env.Client(t), locktest.WithPrefix(env.Prefix)))
	})
}

// recorder is a test that may fail: it records what it failed with.
type recorder struct {
	failure  string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure runs a test, and returns what it failed with; empty if it passed.
func failure(test func(t locktest.TB)) string {
	r := &recorder{}
	var wg sync.WaitGroup
	wg.Go(func() { test(r) })
	wg.Wait()
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	return r.failure
}
