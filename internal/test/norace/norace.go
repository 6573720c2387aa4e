// Package norace runs tests without the race detector that have no use for it. A test that looks for mistakes in
// scripts, or that only computes, finds the same without it, and takes a third of the time.
package norace

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rerun runs the calling test in a process without the race detector, and reports whether it did: the caller has no
// more to do. Without the detector it does nothing. t is not a subtest's, and [Clean] is called at the end of TestMain.
func Rerun(t *testing.T) bool {
	t.Helper()
	if !enabled {
		return false
	}
	binary, err := build(t.Context())
	require.NoError(t, err)
	args := []string{"-test.run=^" + regexp.QuoteMeta(t.Name()) + "$", "-test.v", "-test.count=1"}
	flag.Visit(func(f *flag.Flag) {
		switch {
		case f.Name == "test.parallel", f.Name == "test.short", f.Name == "test.timeout", !strings.HasPrefix(f.Name, "test."):
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
	require.NoError(t, err, "without the race detector:\n%s", out)
	t.Logf("without the race detector:\n%s", out)
	if strings.Contains(string(out), "\n--- SKIP: "+t.Name()+" ") {
		t.SkipNow()
	}
	require.Contains(t, string(out), "\n--- PASS: "+t.Name()+" ", "it has run")
	return true
}

var built struct {
	sync.Mutex
	dir string
	err error
}

// build builds the calling package's tests, once.
func build(ctx context.Context) (binary string, err error) {
	built.Lock()
	defer built.Unlock()
	if built.dir == "" && built.err == nil {
		if built.dir, built.err = os.MkdirTemp("", "perkey-norace-"); built.err != nil {
			return "", built.err
		}
		out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", filepath.Join(built.dir, "tests"), ".").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("norace: build: %w: %s", err, out)
		}
	}
	return filepath.Join(built.dir, "tests"), built.err
}

// Clean removes what Rerun built.
func Clean() error {
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		return nil
	}
	err := os.RemoveAll(built.dir)
	built.dir, built.err = "", errors.New("norace: the tests have ended")
	return err
}
