package observing_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/internal/observing"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestTell_LogsAPanic(t *testing.T) { // not parallel: it looks at slog's default
	said, own, told := testbed.CaptureLog(t), &testbed.Log{}, 0
	observing.Tell(t.Context(), own.Logger(), "core", func() { told++ })
	assert.Equal(t, 1, told)
	assert.Empty(t, own.String())
	observing.Tell(t.Context(), own.Logger(), "core", func() { panic("oops") })
	assert.Contains(t, own.String(), "core: the observer panicked")
	assert.Contains(t, own.String(), "oops")
	assert.Contains(t, own.String(), "observing_test.go", "the stack is that of the panic")

	observing.Tell(t.Context(), nil, "config", func() { panic("again") })
	assert.Contains(t, said.String(), "config: the observer panicked")

	n := 0
	assert.Zero(t, testing.AllocsPerRun(100, func() { observing.Tell(t.Context(), nil, "core", func() { n++ }) }))
}

func TestTellAside_OutlivesAnObserverThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	own, told := &testbed.Log{}, 0
	observing.TellAside(t.Context(), own.Logger(), "core", func() { told++ })
	assert.Empty(t, own.String())
	observing.TellAside(t.Context(), own.Logger(), "core", func() { told++; panic("oops") })
	assert.Contains(t, own.String(), "core: the observer panicked")
	observing.TellAside(t.Context(), own.Logger(), "core", func() { told++; runtime.Goexit() })
	assert.Contains(t, own.String(), "core: the observer ended its goroutine")
	assert.Equal(t, 3, told)
}

func TestAside_SaysHowItEnded(t *testing.T) {
	t.Parallel()
	assert.True(t, observing.Aside(func() {}).Returned)
	assert.Equal(t, observing.Ending{}, observing.Aside(runtime.Goexit))
	e := observing.Aside(func() { panic("oops") })
	assert.False(t, e.Returned)
	assert.Equal(t, "oops", e.Panicked)
	assert.Contains(t, string(e.Stack), "observing_test.go")
}
