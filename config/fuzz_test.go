package config_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
)

// Whatever a file says, Parse says what is wrong or Build makes it: neither panics, and each problem names what it is
// about. What Parse takes the schema takes. A service that runs takes the file, or says why not.
func FuzzParse(f *testing.F) {
	for _, data := range config.GoodFiles(f) {
		f.Add(data)
	}
	for _, c := range badFiles(f) {
		f.Add([]byte(c.file))
	}
	f.Add([]byte("redis: {url: 'redis://h'}\nguards: {a: {key: '{{}}{json.a.b|sha256}'}}\nroutes: {GET /{$}: a, POST /\\:x: a}"))
	for _, policy := range []string{"delay", "[delay]", "[retry, delay, reject]", "{policy: delay}", "{policy: delay, queue: q, coalesce: true, quiet_period: 1ms, max_delay: 1ms, max_age: 1ms}"} {
		for _, file := range []string{
			"defaults: {anonymous: true, on_conflict: %s}\nroutes: {POST /a: {key: k, fixed_key: true}}", "guards: {g: {on_conflict: %s}}",
			"routes: {POST /a: {key: k, fixed_key: true, anonymous: true, on_conflict: %s}}", "asynq: {a: {key: k, fixed_key: true, on_conflict: %s}}",
		} {
			f.Add(fmt.Appendf(nil, "queues: {q: {max_age: 1ms}}\n"+file, policy))
		}
	}
	schema := compiled(f)
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	f.Cleanup(func() { _ = rdb.Close() })
	log := config.WithLogger(slog.New(slog.DiscardHandler))
	right, err := config.ParseIn("testdata/f.yaml", []byte("routes: {POST /fuzz: {key: k, fixed_key: true}}"), nil)
	require.NoError(f, err)
	running, err := config.Build(right, log, config.WithClient(rdb))
	require.NoError(f, err)
	f.Cleanup(func() { _ = running.Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := config.ParseIn("testdata/f.yaml", data, environment)
		if err != nil {
			requireProblems(t, err)
			return
		}
		var value any
		if yaml.Unmarshal(data, &value) == nil { // it does not read all that the parser does
			require.NoError(t, schema.Validate(plain(value)))
		}
		if err := running.Reload(file); err != nil { // before Build: a panic of compile's is an error here
			requireProblems(t, err)
		}
		rt, err := config.Build(file, log, config.WithClient(rdb)) // its own would dial, for min_idle_conns
		if err != nil {
			requireProblems(t, err)
			return
		}
		require.NoError(t, rt.Reload(file))
		require.NoError(t, rt.Close())
	})
}

func requireProblems(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, core.ErrInvalidOption)
	var e *config.Error
	require.True(t, errors.As(err, &e), "%v", err) //nolint:testifylint // a fuzzer's message
	require.NotEmpty(t, e.Problems)
	for _, p := range e.Problems {
		require.NotEmpty(t, p.Message)
		require.NotEmpty(t, p.Source)
		require.Equal(t, p.Line == 0, p.Column == 0, "%v", p)
	}
}
