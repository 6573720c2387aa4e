// Command conformance runs the adapters' conformance tests and prints what came
// out, as a table of behaviours and adapters. It fails if any of them does. Its
// arguments are the packages to look for adapters in.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
)

const suite = "github.com/perkey-go/perkey/internal/test/conformance"

func main() {
	var t table
	err := t.run(os.Args[1:])
	t.write(os.Stdout)
	if err == nil {
		err = t.complete()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// table is what came out of the tests named
// TestConformance/<adapter>/<behaviour>/<redis>, as conformance.Run names them.
type table struct {
	adapters, behaviours []string // in the order in which they came
	cells                map[cell]string
	output               map[string][]string // of each test
	trouble              []string            // the output of what failed
	failed               bool
}

type cell struct{ adapter, behaviour, redis string }

var redises = []string{"embedded", "real"}

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action, Package, Test, Output string
}

// run runs the tests of the packages that import the suite. A test that failed is
// no error.
func (t *table) run(packages []string) error {
	imports, err := exec.Command("go", append([]string{"list", "-f", `{{.ImportPath}} {{join .XTestImports " "}}`}, packages...)...).Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	args := []string{"test", "-json", "-count=1", "-parallel=8", "-timeout=10m", "-run=^TestConformance$"}
	for line := range strings.Lines(string(imports)) {
		if words := strings.Fields(line); slices.Contains(words[1:], suite) {
			args = append(args, words[0])
		}
	}
	tests := exec.Command("go", args...)
	tests.Stderr = os.Stderr
	tests.Env = append(os.Environ(), "PERKEY_TEST_REDIS=both")
	out, err := tests.Output()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		return fmt.Errorf("go test: %w", err)
	}
	t.failed = err != nil
	return t.read(bytes.NewReader(out))
}

func (t *table) read(in io.Reader) error {
	t.cells, t.output = map[cell]string{}, map[string][]string{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("go test: %q: %w", lines.Text(), err)
		}
		t.event(e)
	}
	return lines.Err()
}

func (t *table) event(e event) {
	name := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		t.output[name] = append(t.output[name], e.Output)
	case "build-output":
		t.trouble = append(t.trouble, e.Output)
	case "fail":
		t.trouble = append(t.trouble, t.output[name]...)
	}
	c, is := cellOf(e.Test)
	if !is {
		return
	}
	if !slices.Contains(t.adapters, c.adapter) {
		t.adapters = append(t.adapters, c.adapter)
	}
	if !slices.Contains(t.behaviours, c.behaviour) {
		t.behaviours = append(t.behaviours, c.behaviour)
	}
	switch e.Action {
	case "pass":
		t.cells[c] = "✓"
	case "fail":
		t.cells[c] = "✗"
	case "skip":
		t.cells[c] = "–" + reason(t.output[name])
	}
}

// cellOf takes a test's name apart. An adapter's may have slashes.
func cellOf(test string) (cell, bool) {
	parts := strings.Split(strings.ReplaceAll(test, "_", " "), "/")
	n := len(parts)
	if n < 4 || parts[0] != "TestConformance" || !slices.Contains(redises, parts[n-1]) {
		return cell{}, false
	}
	return cell{strings.Join(parts[1:n-2], "/"), parts[n-2], parts[n-1]}, true
}

// reason is what a test that was skipped said: "    file.go:1: reason".
func reason(output []string) string {
	for _, line := range output {
		if _, why, found := strings.Cut(strings.TrimSpace(line), ".go:"); found {
			_, why, _ = strings.Cut(why, ": ")
			return why
		}
	}
	return ""
}

// write prints the table, and below it the reasons of what is lacking and the
// output of what failed.
func (t *table) write(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "on %s\t%s\n", strings.Join(redises, " and "), strings.Join(t.adapters, "\t"))
	var reasons []string
	for _, b := range t.behaviours {
		row := []string{b}
		for _, a := range t.adapters {
			var marks []string
			for _, r := range redises {
				mark, why, lacks := strings.Cut(t.cells[cell{a, b, r}], "–")
				if lacks {
					mark = "–"
					if line := fmt.Sprintf("– %s: %s: %s", a, b, why); !slices.Contains(reasons, line) {
						reasons = append(reasons, line)
					}
				}
				marks = append(marks, mark)
			}
			row = append(row, strings.Join(marks, " "))
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	for _, line := range reasons {
		fmt.Fprintln(out, line)
	}
	if t.failed {
		fmt.Fprintln(out, strings.Join(t.trouble, ""))
	}
}

// complete returns an error unless every adapter has every behaviour, or a reason.
func (t *table) complete() error {
	if t.failed {
		return errors.New("not every adapter behaves")
	}
	if want := len(t.adapters) * len(t.behaviours) * len(redises); want == 0 || len(t.cells) != want {
		return fmt.Errorf("%d results, want %d", len(t.cells), want)
	}
	return nil
}
