package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

var environment = config.Environment

// Secrets of the tests: no message may show them.
const hunter = "hunter2"

var (
	redisPass  = environment["REDIS_PASSWORD"]
	sentinelPs = environment["SENTINEL_PASSWORD"]
	sealingKey = environment["SHIP_KEY"]
)

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
		if rand.N((config.OneOf+7)/8) > 0 {
			continue // each run has others
		}
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
			if config.OneOf == 1 { // a soak
				assert.Less(t, took, time.Minute, "at most 0.5 s on an idle machine; minutes without the bounds")
			}
		})
	}
}

// What a file says is in memory, and can be printed by accident.
func TestSecrets_AreNotShown(t *testing.T) {
	t.Parallel()
	env := map[string]string{"P": redisPass, "S": sentinelPs, "K": sealingKey}
	f, err := config.ParseIn("f.yaml", []byte(`
redis:
  mode: sentinel
  addresses: [s1.internal:1]
  password: ${P}
  sentinel: {master: m, password: "${S}"}
queues: {q: {encryption: {current: k, keys: {k: {env: K}}}}}
guards: {g: {on_conflict: {policy: delay, queue: q}}}
`), env)
	require.NoError(t, err)
	plain, err := config.ParseIn("f.yaml", []byte("redis: {url: 'redis://us3r:hunter2@h', allow_plain_password: true}"), nil)
	require.NoError(t, err)

	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	for _, f := range []*config.File{f, plain} {
		rt, err := config.Build(f, config.WithLogger(logger))
		require.NoError(t, err)
		for _, v := range []any{f, *f, rt, []any{f, *f, rt}, struct{ F any }{*f}, map[string]any{"f": f, "rt": rt}} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				_, _ = fmt.Fprintf(&log, verb+"\n", v)
			}
			logger.Info("message", "value", v)
			text, err := json.Marshal(v)
			if err == nil {
				log.Write(text)
			}
		}
		err = rt.Reload(f)
		_, _ = fmt.Fprintf(&log, "%v %+v %#v", err, err, err)
		assert.NoError(t, rt.Close())
	}
	assert.Contains(t, log.String(), "config.File(f.yaml: 1 queues, 1 guards, 0 routes)")
	for _, secret := range []string{redisPass, sentinelPs, sealingKey, hunter, "us3r", fmt.Sprintf("%x", redisPass), "0123456789012345678901"} {
		assert.NotContains(t, log.String(), secret)
	}
}

// Mistakes of every kind, with a secret in the place of each value of the section.
func TestProblems_OfARedisSectionShowNoValue(t *testing.T) {
	t.Parallel()
	for _, field := range []string{
		"url", "mode", "addresses", "db", "username", "password", "password_file", "allow_plain_password", "pool_size", "min_idle_conns",
		"conn_max_lifetime", "pool_timeout", "dial_timeout", "read_timeout", "write_timeout", "max_retries", "sentinel", "tls",
	} {
		for _, value := range []string{
			hunter, "'" + hunter + "'", "[" + hunter + "]", "{x: " + hunter + "}", "'${S}'", "['${S}']", "'redis://u:" + hunter + "@h:x'", "'redis://h/" + hunter + "'",
			"'" + hunter + "://h'", "'redis://%zz" + hunter + "'", "'redis://h:1?" + hunter + "=1'",
		} {
			_, err := config.ParseIn("f.yaml", []byte("redis: {"+field+": "+value+"}"), map[string]string{"S": hunter})
			if err != nil {
				assert.NotContains(t, err.Error(), hunter, "%s: %s", field, value)
			}
		}
	}
}

// A secret in the place of a name: that of a field, a variable or a file.
func TestProblems_ShowNoSecretThatIsTakenForAName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"redis: {url: 'redis://h', password: '${" + hunter + "}'}":                                                  "f.yaml:1:37: redis.password: the environment variable is not set; its name is not shown",
		"redis: {url: 'redis://u:${" + hunter + "}@h'}":                                                             "f.yaml:1:14: redis.url: the environment variable is not set; its name is not shown",
		"prefix: ${" + hunter + "}":                                                                                 "f.yaml:1:9: prefix: the environment variable is not set; its name is not shown",
		"queues: {q: {encryption: {current: k, keys: {k: {env: " + hunter + "}}}}}":                                 "f.yaml:1:55: queues.q.encryption.keys.k.env: the environment variable is not set; its name is not shown",
		"redis: {password " + hunter + "}":                                                                          "f.yaml:1:9: redis: unknown field; expected addresses, ",
		"redis: {sentinel: {password " + hunter + "}}":                                                              "redis.sentinel: unknown field; expected master, ",
		"redis: {url: 'redis://h', password_file: " + hunter + "}":                                                  "f.yaml:1:42: redis.password_file: cannot read the file: no such file",
		"queues: {q: {encryption: {current: " + hunter + ", keys: {k: {env: E}}}}}":                                 "encryption.current: unknown key id; expected k",
		"queues: {q: {encryption: {" + hunter + ": k}}}":                                                            "q.encryption: unknown field; expected accept_unsealed, current or keys",
		"redis: {url: 'redis://h'}\nqueues: {q: {encryption: {current: k, keys: {k: {env: " + sealingKey + "}}}}}":  "keys.k.env: expected the name of an environment variable",
		"redis: {url: 'redis://h'}\nqueues: {q: {encryption: {current: k, keys: {k: {file: " + sealingKey + "}}}}}": "keys.k.file: cannot read the file",
	} {
		f, err := config.ParseIn("f.yaml", []byte(text), map[string]string{"E": sealingKey})
		if err == nil {
			_, err = config.Build(f)
		}
		require.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), hunter)
		assert.NotContains(t, err.Error(), sealingKey)
	}
}

// The parser's messages repeat some of what they are about.
func TestProblems_OfYAMLShowNothingOfTheFile(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"|" + hunter, ">" + hunter + " x", "|" + hunter + `"\"` + hunter, "!" + hunter + " &"} {
		_, err := config.ParseIn("f.yaml", []byte("redis:\n  password: "+value+"\n"), nil)
		require.ErrorContains(t, err, "f.yaml:2:", value)
		assert.NotContains(t, err.Error(), hunter, value)
	}
	_, err := config.ParseIn("f.yaml", []byte("redis: |"+hunter+"\n"), nil)
	assert.EqualError(t, err, "config: f.yaml:1:8: is not valid YAML: invalid header option: …")
	_, err = config.ParseIn("f.yaml", []byte("%YAML "+hunter+"\n---\nredis: {}\n"), nil)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), hunter)
}
