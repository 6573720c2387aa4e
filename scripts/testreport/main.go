// Command testreport reads the output of go test -json, prints what go test
// prints without -v, and last how many tests there were, and how many of them
// ran on which Redis. It fails if PERKEY_REQUIRE_REDIS=1 and none ran on a real
// one. Of a package that failed it names the tests that had begun and not ended, and when go test
// ends one by a panic or a timeout, the goroutines that run code of this module. What the race detector found comes
// last: it is told in the name of some test, which may have passed. With -slowest=N it lists the N tests that took longest.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64 // seconds
}

func main() {
	slowest := flag.Int("slowest", 0, "how many of the slowest tests to list")
	flag.Parse()
	var r report
	if err := r.read(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	r.showSlowest(os.Stdout, *slowest)
	fmt.Print(strings.Join(r.races, ""))
	fmt.Println(r)
	if os.Getenv("PERKEY_REQUIRE_REDIS") == "1" && r.real == 0 {
		fmt.Println("FAIL: PERKEY_REQUIRE_REDIS=1, and no test ran on a real Redis")
		os.Exit(1)
	}
	if r.failed > 0 || r.failedPackages > 0 {
		os.Exit(1)
	}
}

// report counts tests and subtests.
type report struct {
	passed, failed, skipped int
	embedded, real          int // those that run on each Redis, and passed
	failedPackages          int
	races                   []string // what the race detector has found
	ended                   []event  // of tests and packages
}

func (r report) String() string {
	return fmt.Sprintf("tests: passed=%d failed=%d skipped=%d on_embedded_redis=%d on_real_redis=%d",
		r.passed, r.failed, r.skipped, r.embedded, r.real)
}

// read copies what is worth reading from in to out.
func (r *report) read(in io.Reader, out io.Writer) error {
	kept := map[string][]event{}     // the output of packages that have not ended
	running := map[string][]string{} // their tests that have not ended, and wait for no other
	crashed, races := map[string]bool{}, map[string]bool{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				_, _ = out.Write(line)
				continue
			}
			r.count(e)
			running[e.Package] = nowRunning(running[e.Package], e)
			// What follows is not the test's that had the last word, which may have passed.
			if crashed[e.Package] = crashed[e.Package] || isCrash(e.Output); crashed[e.Package] && e.Action == "output" {
				e.Test = ""
			}
			if races[e.Package] = races[e.Package] && !strings.HasPrefix(e.Output, "=====") || strings.Contains(e.Output, "DATA RACE"); races[e.Package] {
				r.races = append(r.races, e.Output)
			}
			switch {
			case e.Action == "build-output":
				_, _ = io.WriteString(out, e.Output)
			case e.Action == "output":
				kept[e.Package] = append(kept[e.Package], e)
			case e.Test != "" && (e.Action == "pass" || e.Action == "skip"):
				kept[e.Package] = drop(kept[e.Package], e.Test)
			case e.Test == "" && (e.Action == "pass" || e.Action == "skip" || e.Action == "fail"):
				show(out, kept[e.Package], e.Action == "fail")
				for _, test := range running[e.Package] {
					_, _ = fmt.Fprintf(out, "did not end: %s %s\n", e.Package, test)
				}
				delete(kept, e.Package)
				delete(running, e.Package)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
	}
}

func (r *report) count(e event) {
	if e.Action == "pass" || e.Action == "fail" {
		r.ended = append(r.ended, e)
	}
	switch {
	case e.Test == "" && e.Action == "fail":
		r.failedPackages++
	case e.Test == "":
	case e.Action == "fail":
		r.failed++
	case e.Action == "skip":
		r.skipped++
	case e.Action == "pass":
		r.passed++
		// internal/test/redistest names its subtests so.
		if strings.HasSuffix(e.Test, "/embedded") {
			r.embedded++
		}
		if strings.HasSuffix(e.Test, "/real") {
			r.real++
		}
	}
}

// showSlowest prints the packages and tests that took longest. The time of a test with
// subtests is theirs.
func (r *report) showSlowest(out io.Writer, n int) {
	parents := map[[2]string]bool{}
	for _, e := range r.ended {
		for i, c := range e.Test {
			if c == '/' {
				parents[[2]string{e.Package, e.Test[:i]}] = true
			}
		}
	}
	all := slices.DeleteFunc(slices.Clone(r.ended), func(e event) bool { return parents[[2]string{e.Package, e.Test}] })
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range all[:min(n, len(all))] {
		_, _ = fmt.Fprintf(out, "%7.2fs %s %s\n", e.Elapsed, e.Package, e.Test)
	}
}

// drop removes the output of one test.
func drop(events []event, test string) []event {
	rest := events[:0]
	for _, e := range events {
		if e.Test != test {
			rest = append(rest, e)
		}
	}
	return rest
}

// nowRunning is which tests of a package run after an event. Subtests are reported as ended with their test.
func nowRunning(tests []string, e event) []string {
	switch {
	case strings.Contains(e.Test, "/"):
	case e.Action == "run", e.Action == "cont":
		return append(tests, e.Test)
	case e.Action == "pause", e.Action == "pass", e.Action == "fail", e.Action == "skip":
		return slices.DeleteFunc(tests, func(test string) bool { return test == e.Test })
	}
	return tests
}

func isCrash(output string) bool {
	return strings.HasPrefix(output, "panic: ") || strings.HasPrefix(output, "fatal error: ")
}

// show prints the output of a package: all that is left of it if it failed, but for the goroutines of others, else
// go test's own line.
func show(out io.Writer, events []event, failed bool) {
	var block strings.Builder // a goroutine
	others := 0
	flush := func() {
		if text := block.String(); isOurs(text) {
			_, _ = io.WriteString(out, text)
		} else if text != "" {
			others++
		}
		block.Reset()
	}
	for _, e := range events {
		outcome := e.Test == "" && (strings.HasPrefix(e.Output, "ok") || strings.HasPrefix(e.Output, "?") || strings.HasPrefix(e.Output, "FAIL"))
		chatter := strings.HasPrefix(e.Output, "=== ")
		switch {
		case !failed && !outcome || chatter:
			continue
		case strings.HasPrefix(e.Output, "goroutine ") && e.Test == "":
			flush()
		case block.Len() == 0 || outcome:
			flush()
			_, _ = io.WriteString(out, e.Output)
			continue
		}
		block.WriteString(e.Output)
	}
	flush()
	if others > 0 {
		_, _ = fmt.Fprintf(out, "and %d goroutines of others\n", others)
	}
}

// isOurs reports whether a goroutine runs code of this module, and more than TestMain.
func isOurs(goroutine string) bool {
	return !strings.Contains(goroutine, ".TestMain(") &&
		(strings.Contains(goroutine, "_test.go:") || strings.Contains(goroutine, "perkey-go/perkey/"))
}
