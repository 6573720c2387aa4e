package config_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/config"
)

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
