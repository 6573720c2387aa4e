package config

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Update writes testdata/bad.txt with the problems that are found, and schema.json.
var Update = flag.Bool("update", false, "write testdata/bad.txt and schema.json")

// ParseIn is Parse with an environment of its own.
func ParseIn(name string, data []byte, env map[string]string) (*File, error) {
	return parse(name, data, env)
}

// HasGuard is whether the file in force has a guard, which is not asked for as Guard does.
func (rt *Runtime) HasGuard(name string) bool { return rt.current.Load().guards[name] != nil }

// Break makes a file whose guards cannot be made: that panics.
func (f *File) Break() *File {
	broken := *f
	broken.spec.Defaults.OnConflict = chain{{"defaults.on_conflict", &delayPolicy{Queue: "of no file"}}}
	return &broken
}

// Watcher looks at a file as Watch does, when it is told to.
func (rt *Runtime) Watcher(path string) func(context.Context) {
	w := watch{runtime: rt, path: path, read: rt.File().sum}
	return w.look
}

// GoodFiles are the files in testdata that are right, by their names.
func GoodFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	paths, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	for _, path := range paths {
		files[path], err = os.ReadFile(path)
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, len(files), 5)
	return files
}

// Environment is what the tests' files refer to.
var Environment = map[string]string{
	"REDIS_USER": "us3r", "REDIS_PASSWORD": "s3cret-redis", "SENTINEL_PASSWORD": "s3cret-sentinel", "SHIP_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "POOL": "10",
}
