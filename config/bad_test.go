package config_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
)

// Secrets of the tests: no message may show them.
const (
	hunter     = "hunter2"
	redisPass  = "s3cret-redis"
	sentinelPs = "s3cret-sentinel"
	sealingKey = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
)

var environment = map[string]string{
	"REDIS_USER": "us3r", "REDIS_PASSWORD": redisPass, "SENTINEL_PASSWORD": sentinelPs, "SHIP_KEY": sealingKey, "POOL": "10",
}

// bad is one of the cases in testdata/bad.txt.
type bad struct {
	name, file string
	problems   []string
	schema     bool // the JSON Schema refuses it too
}

// badFiles reads the cases: a line "=== name", the file, and its problems behind ">> ".
func badFiles(t testing.TB) (cases []bad) {
	t.Helper()
	text, err := os.ReadFile("testdata/bad.txt")
	require.NoError(t, err)
	for _, part := range strings.Split("\n"+string(text), "\n=== ")[1:] {
		var b bad
		var file string
		b.name, file, _ = strings.Cut(part, "\n")
		b.name, b.schema = strings.CutSuffix(b.name, " +schema")
		for line := range strings.Lines(file) {
			if problem, ok := strings.CutPrefix(line, ">> "); ok {
				b.problems = append(b.problems, strings.TrimSuffix(problem, "\n"))
			} else {
				b.file += line
			}
		}
		cases = append(cases, b)
	}
	return cases
}

func TestProblems_EachHasItsPlace(t *testing.T) {
	t.Parallel()
	cases := badFiles(t)
	require.GreaterOrEqual(t, len(cases), 40)
	var golden strings.Builder
	for _, c := range cases {
		_, err := config.ParseIn("f.yaml", []byte(c.file), environment)
		got := placed(t, err)
		golden.WriteString("=== " + c.name)
		if c.schema {
			golden.WriteString(" +schema")
		}
		golden.WriteString("\n" + strings.TrimSuffix(c.file, "\n") + "\n")
		for _, p := range got {
			golden.WriteString(">> " + p + "\n")
		}
		if !*config.Update {
			assert.Equal(t, c.problems, got, c.name)
		}
		assert.NotContains(t, strings.Join(got, "\n"), hunter, c.name)
		assert.NotContains(t, strings.Join(got, "\n"), redisPass, c.name)
	}
	if *config.Update {
		require.NoError(t, os.WriteFile("testdata/bad.txt", []byte(golden.String()), 0o600))
	}
}

func TestError_ListsAllProblemsAndIsAnInvalidOption(t *testing.T) {
	t.Parallel()
	_, err := config.ParseIn("f.yaml", []byte("redis: {url: x, db: y}\n"), nil)
	assert.ErrorIs(t, err, core.ErrInvalidOption)
	assert.EqualError(t, err, "config: 2 problems:\n"+
		"  f.yaml:1:14: redis.url: not the URL of a Redis; expected one such as redis://localhost:6379/0, or rediss:// for TLS\n"+
		"  f.yaml:1:21: redis.db: expected a whole number, got other text")
	var e *config.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, config.Problem{
		Source: "f.yaml", Line: 1, Column: 21, Path: "redis.db", Message: "expected a whole number, got other text",
	}, e.Problems[1])

	_, err = config.ParseIn("f.yaml", []byte("prefix: {}\n"), nil)
	assert.EqualError(t, err, "config: f.yaml:1:1: prefix: expected a single value, got a mapping; text with a colon or braces needs quotes")
}

// Package strictyaml bounds what a document costs; this is what is looked for in one.
func TestParse_HostileFiles(t *testing.T) {
	numbered := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	long := strings.Repeat("n", 42)
	for name, file := range map[string]string{
		"tags in one line":    strings.Repeat("- !t ", 61_000),
		"braces":              strings.Repeat("{", 97_000),
		"unknown names":       numbered(4000, "name%d:\n"),
		"unknown fields":      "guards: {g: {" + numbered(1990, "n%d: 1, ") + "}}",
		"unknown guards":      "guards: {" + numbered(700, long+"%d: {}, ") + "}\nroutes:\n" + numbered(1400, "  POST /%[1]d: "+long+"x%[1]d\n"),
		"unknown queues":      "queues: {" + numbered(700, long+"%d: {}, ") + "}\nguards:\n" + numbered(290, "  g%[1]d: {on_conflict: {policy: delay, queue: "+long+"x%[1]d}}\n"),
		"unknown policies":    "guards:\n" + numbered(800, "  g%d: {on_conflict: [rety]}\n"),
		"the same route":      "routes:\n" + numbered(1900, "  POST /{a%d}: {}\n"),
		"headers":             "defaults: {allow_headers: [" + numbered(1900, "X-%d, ") + "], credential_headers: [" + numbered(1900, "X-%d, ") + "]}",
		"wrong headers":       "defaults: {allow_headers: [" + numbered(3900, "a b%d, ") + "]}",
		"no principal":        "defaults: {max_waiters_per_principal: 1}\nguards: {" + numbered(700, "g%d: {}, ") + "}\nroutes:\n" + numbered(1390, "  POST /%[1]d: g%[1]d\n"),
		"a long key":          "guards: {g: {key: '" + strings.Repeat("{", 200_000) + "'}}",
		"a key with mistakes": "guards: {g: {key: '" + strings.Repeat("{x}", 60_000) + "'}}",
		"a long route":        "routes: {'POST /" + strings.Repeat(":a/", 60_000) + "': {key: k}}",
		"references":          "redis: {url: '" + strings.Repeat("${A}", 60_000) + "'}",
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := config.ParseIn("f.yaml", []byte(file), nil)
			text := fmt.Sprint(err)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			assert.Error(t, err)
			assert.Less(t, len(text), 1<<20)
			assert.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(100), "MB allocated in all")
			assert.Less(t, took, time.Minute, "at most 0.5 s on an idle machine; minutes without the bounds")
		})
	}
}
