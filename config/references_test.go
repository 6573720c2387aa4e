package config_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
)

// options are the settings of a Runtime's client.
func options(t *testing.T, file string, env map[string]string) *redis.Options {
	t.Helper()
	f, err := config.ParseIn("f.yaml", []byte(file), env)
	require.NoError(t, err)
	rt, err := config.Build(f)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rt.Close() })
	return rt.Redis().(*redis.Client).Options()
}

func TestReferences_StandForVariables(t *testing.T) {
	t.Parallel()
	o := options(t, "redis: {url: 'redis://u:${P}@${H}:1', pool_size: '${N}', read_timeout: '${N}s', max_retries: 3}",
		map[string]string{"P": hunter, "H": "host", "N": "9"})
	assert.Equal(t, []any{"host:1", "u", hunter, 9, 9 * time.Second}, []any{o.Addr, o.Username, o.Password, o.PoolSize, o.ReadTimeout})

	o = options(t, "redis: {addresses: ['${H}:1'], password: 'a$${b}', allow_plain_password: true}", map[string]string{"H": "h"})
	assert.Equal(t, []any{"h:1", "a${b}"}, []any{o.Addr, o.Password})

	// Whole settings may come from the environment, a password in a URL among them.
	o = options(t, "redis: {url: '${REDIS_URL}'}", map[string]string{"REDIS_URL": "rediss://u:" + hunter + "@h:6380/4"})
	assert.Equal(t, []any{"h:6380", "u", hunter, 4}, []any{o.Addr, o.Username, o.Password, o.DB})
	require.NotNil(t, o.TLSConfig)
}

func TestReferences_ThePrefixMayBeOne(t *testing.T) {
	t.Parallel()
	const file = "prefix: 'shop-${STAGE}'\nredis: {url: 'redis://h'}"
	f, err := config.ParseIn("f.yaml", []byte(file), map[string]string{"STAGE": "test"})
	require.NoError(t, err)
	rt, err := config.Build(f)
	require.NoError(t, err)
	assert.Equal(t, "shop-test", rt.Locker().Prefix())
	require.NoError(t, rt.Close())
	_, err = config.ParseIn("f.yaml", []byte(file), nil)
	assert.EqualError(t, err, "config: f.yaml:1:9: prefix: the environment variable STAGE is not set")
}

// Nothing else of the environment counts.
func TestReferences_NothingElseOverridesAFile(t *testing.T) {
	t.Parallel()
	o := options(t, "redis: {url: 'redis://h:1'}", map[string]string{"PERKEY_REDIS_URL": "redis://other:2", "PERKEY_REDIS_PORT": "tcp://10.0.0.1:6379"})
	assert.Equal(t, "h:1", o.Addr)
}

// The environment of the process is what Load and Parse read. An empty variable counts as none.
func TestLoad_ReadsTheEnvironment(t *testing.T) {
	t.Setenv("PERKEY_TEST_HOST", "from-the-environment")
	t.Setenv("PERKEY_TEST_EMPTY", "")
	path := filepath.Join(t.TempDir(), "perkey.yaml")
	require.NoError(t, os.WriteFile(path, []byte("\ufeffredis: {url: 'redis://${PERKEY_TEST_HOST}:1'}\r\n"), 0o600))
	f, err := config.Load(path)
	require.NoError(t, err)
	rt, err := config.Build(f)
	require.NoError(t, err)
	assert.Equal(t, "from-the-environment:1", rt.Redis().(*redis.Client).Options().Addr)
	assert.NoError(t, rt.Close())

	require.NoError(t, os.WriteFile(path, []byte("redis: {url: 'redis://${PERKEY_TEST_EMPTY}:1'}"), 0o600))
	_, err = config.Load(path)
	assert.ErrorContains(t, err, "redis.url: the environment variable PERKEY_TEST_EMPTY is not set")
	_, err = config.Load(filepath.Dir(path))
	assert.ErrorContains(t, err, "not a regular file")
	_, err = config.Load(path + "x")
	assert.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<19), 0o600))
	_, err = config.Load(path)
	assert.ErrorContains(t, err, "larger than")
	_, err = config.Parse(path, make([]byte, 1<<19))
	assert.ErrorContains(t, err, "larger than")
}

func TestLoad_LeavesTheEnvironmentAsItIs(t *testing.T) {
	t.Parallel()
	env := maps.Clone(environment)
	_, _ = config.ParseIn("f.yaml", []byte("redis: {password: '${REDIS_PASSWORD}'}"), env)
	assert.Equal(t, environment, env)
}
