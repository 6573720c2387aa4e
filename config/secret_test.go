package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
)

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
