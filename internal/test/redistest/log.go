package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Logged are the arguments of a server that has a Log.
var Logged = []string{"--appendonly", "yes", "--appendfsync", "no", "--aof-use-rdb-preamble", "no", "--auto-aof-rewrite-percentage", "0"}

// AwaitLog waits until the server's log has all that came with its latest copy of another server's data.
func (s *Server) AwaitLog(t testing.TB) {
	t.Helper()
	Eventually(t, func() bool {
		info := s.client(t).Info(t.Context(), "persistence").Val()
		return strings.Contains(info, "aof_enabled:1") && strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	}, "a whole log")
}

// Log calls each with the commands in the server's append-only files: what it has written of its own and what its
// primary has sent, as effects of scripts, since its latest copy of a primary's data and with what was in that. The
// server has it in the file before its client has the reply.
func (s *Server) Log(t testing.TB, each func(command []string)) {
	t.Helper()
	var files []string
	for _, pattern := range []string{"appendonlydir/*.aof", "appendonly.aof"} { // Redis 7, and before
		found, err := filepath.Glob(filepath.Join(s.dir, pattern))
		require.NoError(t, err)
		files = append(files, found...)
	}
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for r := bufio.NewReader(bytes.NewReader(data)); ; {
			command, err := readCommand(r)
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // the last one is still being written
				break
			}
			require.NoError(t, err, file)
			each(command)
		}
	}
}

func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readLength(r, '*')
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		length, err := readLength(r, '$')
		if err != nil {
			return nil, err
		}
		text := make([]byte, length+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, err
		}
		command[i] = string(text[:length])
	}
	return command, nil
}

func readLength(r *bufio.Reader, kind byte) (n int, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if _, err = fmt.Sscanf(line, string(kind)+"%d", &n); err != nil {
		return 0, fmt.Errorf("redistest: %q: %w", strings.TrimSpace(line), err)
	}
	return n, nil
}
