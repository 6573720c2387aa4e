// Package mutant breaks Go code on purpose, one piece at a time, to see that tests notice.
package mutant

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Var names the environment variable that says, by its name, which mutant a binary is.
const Var = "PERKEY_TEST_BROKEN"

// Mutant is a broken piece of code.
type Mutant struct {
	Name string
	File string // by its path from the folder of the test
	Old  string // stands in the file exactly once
	New  string // takes its place; %s or %[1]s is true in a binary that is this mutant

	Tests string // catch it, as -run matches them; empty: those of Catch
}

// Catch expects each mutant to fail its Tests of the calling package, or those that run matches. They have
// env in their environment.
func Catch(t *testing.T, mutants []Mutant, run string, env ...string) {
	if os.Getenv(Var) != "" {
		t.Skip("this is a mutant")
	}
	binary := Build(t, mutants)
	for _, m := range mutants {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			Run(t, binary, m.Name, cmp.Or(m.Tests, run), env...)
		})
	}
}

// Run expects a mutant in a binary that Build made to fail the tests that run matches.
func Run(t *testing.T, binary, name, run string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", run, "-test.failfast", "-test.timeout", "2m")
	cmd.Env = append(append(os.Environ(), env...), Var+"="+name)
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "not caught:\n%s", out)
	t.Log(strings.Join(strings.SplitN(string(out), "\n", 3)[:2], "\n"))
}

// Build returns the path of the calling package's test binary, built with all mutants in it:
// Var chooses one. The sources stay as they are.
func Build(t *testing.T, mutants []Mutant) (binary string) {
	t.Helper()
	dir := t.TempDir()
	overlay := filepath.Join(dir, "overlay.json")
	binary = filepath.Join(dir, "mutants")
	require.NoError(t, os.WriteFile(overlay, overlayOf(t, dir, mutants), 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags=soak", "-overlay", overlay, "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// overlayOf writes the changed sources to dir, and returns what the go command needs to know of them.
func overlayOf(t *testing.T, dir string, mutants []Mutant) []byte {
	t.Helper()
	sources := map[string]string{}
	for _, m := range mutants {
		if sources[m.File] == "" {
			source, err := os.ReadFile(m.File)
			require.NoError(t, err)
			sources[m.File] = string(source)
			file, err := parser.ParseFile(token.NewFileSet(), m.File, source, parser.PackageClauseOnly)
			require.NoError(t, err)
			sources[filepath.Join(filepath.Dir(m.File), "mutant.go")] = fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar chosenMutant = os.Getenv(%q)\n", file.Name, Var)
		}
		require.Equal(t, 1, strings.Count(sources[m.File], m.Old), "%s has once: %s", m.File, m.Old)
		chosen := fmt.Sprintf("(chosenMutant == %q)", m.Name)
		sources[m.File] = strings.Replace(sources[m.File], m.Old, fmt.Sprintf(m.New, chosen), 1)
	}
	replace := map[string]string{}
	for name, source := range sources {
		path, err := filepath.Abs(name)
		require.NoError(t, err)
		replace[path] = filepath.Join(dir, strings.ReplaceAll(name, string(filepath.Separator), "-"))
		require.NoError(t, os.WriteFile(replace[path], []byte(source), 0o600))
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	require.NoError(t, err)
	return overlay
}
