package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What changed a moment ago may be half of what it will be.
func TestRotation_LeavesAFileThatStillChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	synctest.Test(t, func(t *testing.T) {
		v := &rotating[string]{
			settings: []string{"redis.password_file"}, files: []string{path}, held: [][]byte{[]byte("old")}, value: "old",
			parse: func(held [][]byte) (string, error) { return string(held[0]), nil },
			log:   func() *slog.Logger { return slog.New(slog.DiscardHandler) },
		}
		for _, written := range []string{"h", "half", "old", "whole"} {
			require.NoError(t, os.WriteFile(path, []byte(written), 0o600))
			require.NoError(t, os.Chtimes(path, time.Now(), time.Now()))
			require.Equal(t, "old", v.now())
			time.Sleep(settle - 1)
			require.Equal(t, "old", v.now())
		}
		time.Sleep(time.Nanosecond)
		require.Equal(t, "whole", v.now())
	})
}
