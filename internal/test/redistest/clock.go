package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/clock.c
var clockSource []byte

// StartClocked is Start for a server whose clock runs and can be set by SetClock. It needs Linux and a C compiler.
func StartClocked(t testing.TB, args ...string) *Server {
	t.Helper()
	RequireServer(t)
	if runtime.GOOS != "linux" {
		t.Skip("redistest: a clock that can be set needs LD_PRELOAD")
	}
	cc, err := exec.LookPath("cc")
	if err != nil && os.Getenv(RequireVar) != "1" {
		t.Skip("redistest: no C compiler on PATH")
	}
	require.NoError(t, err)
	dir := t.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	require.NoError(t, os.WriteFile(source, clockSource, 0o600))
	out, err := exec.Command(cc, "-O1", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	s, err := plan(dir, args...)
	require.NoError(t, err)
	s.clock = filepath.Join(dir, "clock.offset")
	s.env = []string{"LD_PRELOAD=" + library, "CLOCK_OFFSET_FILE=" + s.clock}
	s.SetClock(t, 0)
	require.NoError(t, s.start())
	t.Cleanup(s.Kill)
	return s
}

// SetClock sets the clock of a server that StartClocked started: from now on it is ahead of this machine's by so much,
// or behind it if ahead is negative. It runs on from there, also across a restart. Valkey 9.1 reads its clock once a millisecond,
// so SetClock returns when the server tells the new time.
func (s *Server) SetClock(t testing.TB, ahead time.Duration) {
	t.Helper()
	file, err := os.OpenFile(s.clock, os.O_WRONLY|os.O_CREATE, 0o600) // kept as it is: the server maps it
	require.NoError(t, err)
	_, err = file.Write(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds()))) // one write: never half an offset
	require.NoError(t, err)
	require.NoError(t, file.Close())
	if s.done == nil {
		return // it has not started
	}
	Eventually(t, func() bool {
		from := time.Now().Add(ahead - time.Millisecond)
		now, err := s.client(t).Time(t.Context()).Result()
		return err == nil && now.After(from) && now.Before(time.Now().Add(ahead+time.Millisecond))
	}, "a server that tells the new time")
}
