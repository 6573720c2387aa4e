package config_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// watched is a file of a Runtime that looks at it.
type watched struct {
	*config.Runtime

	t    *testing.T
	path string
	head string
	logs testbed.Log
}

func newWatched(t *testing.T, file string, opts ...config.Option) *watched {
	t.Helper()
	env := redistest.Embedded(t)
	w := &watched{
		t: t, path: filepath.Join(t.TempDir(), "perkey.yaml"),
		head: "redis: {addresses: ['" + env.Addr + "']}\nprefix: " + env.Prefix + "\n",
	}
	w.write(file)
	f, err := config.Load(w.path)
	require.NoError(t, err)
	w.Runtime, err = config.Build(f, append(opts, config.WithLogger(w.logs.Logger()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func (w *watched) write(rest string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(w.path, []byte(w.head+rest), 0o600))
}

func (w *watched) has(guard string) bool { return w.HasGuard(guard) }

func TestWatch_TakesAFileThatIsTheSameTwice(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "guards: {first: {}}\n")
	look := w.Watcher(w.path)
	ctx := t.Context()
	look(ctx)
	look(ctx)
	assert.Empty(t, w.logs.String(), "the file in force is not loaded again")

	w.write("guards: {half: {}}\n")
	look(ctx)
	assert.False(t, w.has("half"), "it may not be whole")
	w.write("guards: {half: {}, whole: {}}\n")
	look(ctx)
	assert.False(t, w.has("half"), "it was not")
	look(ctx)
	assert.True(t, w.has("whole"))
	assert.Equal(t, 1, strings.Count(w.logs.String(), "config: reloaded"))

	for _, bad := range []string{"guards: {half: {tll: 5s}}\n", "redis: {}\n", "guards: ["} {
		w.write(bad)
		for range 4 {
			look(ctx)
		}
		assert.True(t, w.has("whole"), "the old one stays in force")
	}
	assert.Equal(t, 3, strings.Count(w.logs.String(), "level=ERROR"), "each is told once")
	assert.Contains(t, w.logs.String(), `perkey.yaml:3:17: guards.half.tll: unknown field; did you mean \"ttl\"?`)

	require.NoError(t, os.Remove(w.path))
	for range 4 {
		look(ctx)
	}
	assert.Equal(t, 4, strings.Count(w.logs.String(), "level=ERROR"), "so is that it is gone")
	assert.True(t, w.has("whole"))

	w.write("guards: {again: {}}\n")
	look(ctx)
	look(ctx)
	assert.True(t, w.has("again"))
}

func TestWatch_SeesAFileInThePlaceOfAnother(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "guards: {first: {}}\n")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Watch(ctx, w.path, time.Millisecond)
	}()
	// As Kubernetes does: the name is a link, and the link is replaced.
	next := filepath.Join(t.TempDir(), "next.yaml")
	require.NoError(t, os.WriteFile(next, []byte(w.head+"guards: {second: {}}\n"), 0o600))
	link := filepath.Join(filepath.Dir(w.path), "link")
	require.NoError(t, os.Symlink(next, link))
	require.NoError(t, os.Rename(link, w.path))
	redistest.Eventually(t, func() bool { return w.has("second") }, "the new file in force")
	cancel()
	<-done
}

func TestWatch_EndsWithTheRuntime(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "guards: {first: {}}\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Watch(context.Background(), w.path, 0)
	}()
	require.NoError(t, w.Close())
	<-done
}
