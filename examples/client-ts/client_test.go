//go:build soak

// Package clientts tests client.ts in Node, against the demo: of make test-all.
package clientts

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// requireVar is an environment variable that, set to 1, makes a missing node or tsc a failure.
const requireVar = "PERKEY_REQUIRE_NODE"

func TestMain(m *testing.M) {
	for _, name := range []string{"node", "tsc"} {
		if _, err := exec.LookPath(name); err != nil {
			fmt.Printf("client-ts: no %s on PATH: nothing is tested; scripts/node.sh installs it\n", name)
			if os.Getenv(requireVar) == "1" {
				os.Exit(1)
			}
			return
		}
	}
	os.Exit(m.Run())
}

func TestClient(t *testing.T) {
	dir := t.TempDir()
	run := func(cmd *exec.Cmd) {
		t.Helper()
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", cmd, out)
		t.Logf("%s", out)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type":"module"}`), 0o600))
	run(exec.CommandContext(t.Context(), "tsc", "--strict", "--target", "es2022", "--module", "es2022", "--lib", "es2022,dom,dom.iterable", "--outDir", dir, "client.ts"))
	demo := filepath.Join(dir, "demo")
	run(exec.CommandContext(t.Context(), "go", "build", "-o", demo, "../demo"))

	node := exec.CommandContext(t.Context(), "node", "--test", "client.test.mjs")
	node.Env = append(os.Environ(), "CLIENT="+filepath.Join(dir, "client.js"), "DEMO="+serve(t, demo))
	run(node)
}

// serve runs the demo, and returns its address.
func serve(t *testing.T, demo string) string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), demo) // it ends in its own way
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	ended, err := redistest.Spawn(cmd)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		<-ended
	})
	url := make(chan string, 1)
	go func() {
		defer close(url)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if at := regexp.MustCompile(`http://[0-9.:]+`).FindString(lines.Text()); at != "" && len(url) == 0 {
				url <- at
			}
		}
	}()
	at := <-url
	require.NotEmpty(t, at, "the demo says where it serves")
	return at
}
