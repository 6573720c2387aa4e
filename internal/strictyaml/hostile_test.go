package strictyaml_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// most is the length of the longest texts that are tried: some are refused for that alone.
const most = strictyaml.MaxSize

// full repeats a text up to the largest document that is looked into.
func full(before, text string) string {
	return before + strings.Repeat(text, (most-len(before))/len(text))
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// stairs is a document whose lines are each one column further in than the last one.
func stairs(line string) string {
	var b strings.Builder
	for i := 0; b.Len() < most-1000; i++ {
		b.WriteString(strings.Repeat(" ", i) + line + "\n")
	}
	return b.String()
}

// Without the bounds of parse some of these take minutes and gigabytes. It is long since most of it is a table.
func TestDecode_HostileDocuments(t *testing.T) {
	hostile := map[string]string{
		"a megabyte":              strings.Repeat("a", 1<<20),
		"tags in one line":        strings.Repeat("- !t ", 61_000),
		"tags in the bounds":      full("", "- !t "),
		"braces":                  strings.Repeat("{", 97_000),
		"unknown names":           numbered(4000, "name%d: 1\n"),
		"unknown names, no value": numbered(4000, "n%d:\n"),
		"one name":                full("", "a:\n"),
		"unknown names in braces": "{" + numbered(2500, "n%d: 1, ") + "}",
		"misspelt names":          numbered(2600, "textt%d: 1\n"),
		"long names":              numbered(2000, strings.Repeat("n", 100)+"%d: 1\n"),
		"aliases":                 "a: &a [x]\n" + numbered(20, "b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a] # %d\n"),
		"merge keys":              full("", "<<: *a\n"),
		"empty lines in a text":   full("text: |\n", "\n"),
		"CRs in a text":           full("text: >\n", "\r"),
		"spaces in a text":        full("text: |\n x\n", "  \n"),
		"runs of empty lines":     full("text: |\n", " x\n"+strings.Repeat("\n", 49)),
		"a long list":             full("list: [", "a,"),
		"a long mapping":          full("map: {", "a: b, "),
		"pairs in a list":         full("list: [", "a: b, "),
		"comments":                full("", "#\n"),
		"documents":               full("", "---\n"),
		"ends of documents":       full("", "...\n"),
		"quotes":                  full("", `"" `),
		"an open quote":           full(`"`, `\n`),
		"tabs":                    full("a:", "\t"),
		"tabs between quotes":     full(`a: "`, "\t"),
		"tabs between words":      full(`a: "`, "\tx"),
		"lines of 100 tabs":       full(`a: "`, strings.Repeat("x\t", 100)+strings.Repeat("x", 20_000)+"\n  "),
		"complex keys":            full("", "? "),
		"complex keys by line":    full("", "? a\n"),
		"a list under a name":     "lists: {" + strings.Repeat("n", 200_000) + ": [" + strings.Repeat("1,", 3900) + "]}",
		"a list under names":      strings.Repeat("{"+strings.Repeat("n", 510)+": ", 30) + "[" + strings.Repeat("1,", 3900) + "]" + strings.Repeat("}", 30),
		"escaped references":      "login: {usr: u, user: '" + strings.Repeat("$${", 80_000) + "'}",
		"text and references":     "login: {usr: u, user: '" + strings.Repeat("a${SHORT}", 25_000) + "'}",
		"references to long text": "login: {user: '" + strings.Repeat("${LONG}", 30_000) + "'}",
	}
	for _, s := range []string{"[", "{", "- ", "{a: ", "[]]", "[- ", "-\n", "a: ", "a: -", ": ", "! ", "&a ", "*a ", "|\n", ">\n", "%a\n", "~ ", "'", "\\", ",", "]", "}"} {
		hostile["repeated "+s] = full("", s)
		hostile["deeper "+s] = full("a: 1\nb:\n ", s)
	}
	for _, s := range []string{"-", "- a:", "a:", "a: b", "?", "{", "[", "!t", "&a", "x", "- !t", "a: |", "-  # c"} {
		hostile["stairs of "+s] = stairs(s)
	}
	env := map[string]string{"SHORT": "s", "LONG": strings.Repeat("l", 10_000)}
	for name, text := range hostile {
		if rand.N(oneOf) > 0 {
			continue // all of them take half a minute under the race detector; each run has others
		}
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			var d document
			report, _ := strictyaml.Decode([]byte(text), &d, env)
			problems := report.Problems()
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if name != "runs of empty lines" { // it is a long text
				assert.NotEmpty(t, problems)
			}
			assert.LessOrEqual(t, len(problems), 51)
			assert.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(100), "MB allocated in all")
			if oneOf == 1 { // a soak
				assert.Less(t, took, time.Minute, "0.1 s on an idle machine; minutes without the bounds")
			}
		})
	}
}
