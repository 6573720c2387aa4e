package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
)

func TestConnect_NeedsTheRedisAlone(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "password"), []byte("hush\n"), 0o600))
	t.Setenv("NODE", "127.0.0.1:7000")
	rdb, prefix, err := config.Connect(filepath.Join(dir, "service.yaml"), []byte(`
prefix: shop
redis: {mode: cluster, addresses: ["${NODE}"], username: ops, password_file: password}
queues: {"a b": {}, ship: {encryption: {current: a, keys: {a: {env: NOT_SET}}}}}
guards: {pay: nonsense}
`))
	require.NoError(t, err)
	defer func() { _ = rdb.Close() }()
	require.Equal(t, "shop", prefix)
	require.Equal(t, []string{"127.0.0.1:7000"}, rdb.(*redis.ClusterClient).Options().Addrs)

	rdb2, prefix, err := config.Connect("f", []byte("redis: {url: 'redis://localhost/3'}"))
	require.NoError(t, err)
	defer func() { _ = rdb2.Close() }()
	require.Equal(t, "perkey", prefix)
	require.Equal(t, 3, rdb2.(*redis.Client).Options().DB)
}

func TestConnect_TellsWhatIsWrongWithIt(t *testing.T) {
	for file, want := range map[string]string{
		"guards: {pay: nonsense}":                           "f:1:1: redis: no Redis is given",
		"redis: {url: 'http://x'}\nguards: {pay: nonsense}": "f:1:14: redis.url: the URL has an unknown scheme",
		"redis: {url: 'redis://u:hush@x'}":                  "f:1:14: redis.url: the password is in plain text",
		"redis: {url: 'redis://x', mode: many}":             "redis.mode",
		"redis: {url: 'redis://${NOT_SET}'}":                "NOT_SET",
		"redis: {url: 'redis://x', password_file: hush}":    "redis.password_file: cannot read the file",
		"redis: {url: 'redis://x', nonsense: 1}":            "redis: unknown field",
		"prefix: ${NOT_SET}\nredis: {url: 'redis://x'}":     "prefix",
		"redis: {url: 'redis://x'":                          "f:1:",
	} {
		rdb, _, err := config.Connect("f", []byte(file))
		require.Nil(t, rdb, file)
		require.ErrorIs(t, err, core.ErrInvalidOption, file)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hush")
		require.NotContains(t, err.Error(), "guards.")
	}
}
