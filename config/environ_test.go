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

func TestVariablesOverrideTheFile(t *testing.T) {
	t.Parallel()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, newAuthority(t).pem, 0o600))
	o := options(t, "redis: {url: 'redis://old:1/3', pool_size: 5, read_timeout: 1s}", map[string]string{
		"PERKEY_REDIS_URL":                      "rediss://u:" + hunter + "@new:6380/4",
		"PERKEY_REDIS_POOL_SIZE":                "7",
		"PERKEY_REDIS_MAX_RETRIES":              "0",
		"PERKEY_REDIS_DIAL_TIMEOUT":             "250ms",
		"PERKEY_REDIS_TLS_CA_FILE":              ca,
		"PERKEY_REDIS_TLS_INSECURE_SKIP_VERIFY": "true",
	})
	assert.Equal(t, "new:6380", o.Addr)
	assert.Equal(t, []any{"u", hunter, 4, 7, 0, 250 * time.Millisecond, time.Second},
		[]any{o.Username, o.Password, o.DB, o.PoolSize, o.MaxRetries, o.DialTimeout, o.ReadTimeout})
	require.NotNil(t, o.TLSConfig)
	assert.True(t, o.TLSConfig.InsecureSkipVerify)
	assert.NotNil(t, o.TLSConfig.RootCAs)
	assert.GreaterOrEqual(t, o.TLSConfig.MinVersion, uint16(0x0303))

	// A password needs no leave to be in the environment.
	o = options(t, "redis: {allow_plain_password: false}", map[string]string{
		"PERKEY_REDIS_ADDRESSES": " h:1 ", "PERKEY_REDIS_PASSWORD": hunter, "PERKEY_REDIS_MODE": "standalone",
	})
	assert.Equal(t, []any{"h:1", hunter}, []any{o.Addr, o.Password})
}

func TestReferencesStandForVariables(t *testing.T) {
	t.Parallel()
	o := options(t, "redis: {url: 'redis://u:${P}@${H}:1', pool_size: '${N}', read_timeout: '${N}s', max_retries: 3}",
		map[string]string{"P": hunter, "H": "host", "N": "9"})
	assert.Equal(t, []any{"host:1", "u", hunter, 9, 9 * time.Second}, []any{o.Addr, o.Username, o.Password, o.PoolSize, o.ReadTimeout})

	o = options(t, "redis: {addresses: ['${H}:1'], password: 'a$${b}', allow_plain_password: true}", map[string]string{"H": "h"})
	assert.Equal(t, []any{"h:1", "a${b}"}, []any{o.Addr, o.Password})
}

// What a file refers to need not be there where its value does not count.
func TestReferencesOfOverriddenValuesMayBeUnset(t *testing.T) {
	t.Parallel()
	o := options(t, "redis: {url: 'redis://:${NONE}@h', pool_size: '${NONE}'}", map[string]string{"PERKEY_REDIS_URL": "redis://new", "PERKEY_REDIS_POOL_SIZE": "3"})
	assert.Equal(t, []any{"new:6379", "", 3}, []any{o.Addr, o.Password, o.PoolSize})
	o = options(t, "redis: {addresses: ['${NONE}:1', 'b:${NONE}'], password: '${NONE}'}", map[string]string{"PERKEY_REDIS_ADDRESSES": "new:1", "PERKEY_REDIS_PASSWORD": hunter})
	assert.Equal(t, []any{"new:1", hunter}, []any{o.Addr, o.Password})

	_, err := config.ParseIn("f.yaml", []byte("redis: {url: 'redis://:${NONE}@h', password: '${NONE}'}"), map[string]string{"PERKEY_REDIS_URL": "redis://new"})
	assert.EqualError(t, err, "config: f.yaml:1:46: redis.password: the environment variable NONE is not set")
	_, err = config.ParseIn("f.yaml", []byte("redis: {url: 'redis://:${NONE@h'}"), map[string]string{"PERKEY_REDIS_URL": "redis://new"})
	assert.ErrorContains(t, err, "f.yaml:1:14: redis.url: has a ${ that begins no ${NAME}", "a mistake of the file's is one anyway")
}

func TestDefaultsAndPrefixFromVariables(t *testing.T) {
	t.Parallel()
	f, err := config.ParseIn("f.yaml", []byte("guards: {}"), map[string]string{
		"PERKEY_PREFIX": "other", "PERKEY_DEFAULTS_TTL": "1m", "PERKEY_DEFAULTS_SAFE_METHODS": "lock", "PERKEY_DEFAULTS_MAX_BODY": "1KiB",
		"PERKEY_DEFAULTS_ALLOW_HEADERS": "X-A,X-B", "PERKEY_DEFAULTS_STATUS_PATH": "/t/", "PERKEY_DEFAULTS_PRINCIPAL": "users",
		// Of others, or of nobody's.
		"PERKEY_REQUIRE_REDIS": "1", "PERKEY_REDIS_PORT": "tcp://10.0.0.1:6379", "PERKEY_REDIS_SERVICE_HOST": "10.0.0.1",
		"PERKEY_REDIS_PORT_6379_TCP_ADDR": "10.0.0.1",
	})
	require.NoError(t, err)
	assert.NotNil(t, f)
}

// Kubernetes sets these for the Services perkey-redis, perkey-redis-master and perkey-defaults.
func TestTheVariablesOfServicesAreNoSettings(t *testing.T) {
	t.Parallel()
	for _, service := range []string{"PERKEY_REDIS", "PERKEY_REDIS_MASTER", "PERKEY_DEFAULTS"} {
		env := map[string]string{}
		for _, name := range []string{
			"_SERVICE_HOST", "_SERVICE_PORT", "_SERVICE_PORT_TCP_REDIS", "_PORT", "_PORT_6379_TCP", "_PORT_6379_TCP_PROTO", "_PORT_6379_TCP_PORT",
			"_PORT_6379_TCP_ADDR", "_PORT_26379_UDP", "_PORT_9_SCTP_ADDR",
		} {
			env[service+name] = "10.0.0.1"
		}
		_, err := config.ParseIn("f.yaml", []byte("guards: {}"), env)
		assert.NoError(t, err)
	}
	for _, misspelt := range []string{"PERKEY_REDIS_PORTS", "PERKEY_REDIS_SERVICE_NAME", "PERKEY_REDIS_PORT_TCP"} {
		_, err := config.ParseIn("f.yaml", []byte("guards: {}"), map[string]string{misspelt: "x"})
		assert.ErrorContains(t, err, "no setting has this name", misspelt)
	}
}

func TestWhatIsWrongInAVariableNamesIt(t *testing.T) {
	t.Parallel()
	for variable, problem := range map[string]string{
		"PERKEY_REDIS_POOL_SIZE":         "$PERKEY_REDIS_POOL_SIZE: redis.pool_size: the value is no whole number",
		"PERKEY_REDIS_READ_TIMEOUT":      "$PERKEY_REDIS_READ_TIMEOUT: redis.read_timeout: the value is no duration; want one such as 500ms, 15s or 1h30m",
		"PERKEY_REDIS_URL":               "$PERKEY_REDIS_URL: redis.url: the value is no URL of a Redis; want redis://[user[:password]@]host[:port][/db], or rediss:// for TLS",
		"PERKEY_REDIS_ADDRESSES":         "$PERKEY_REDIS_ADDRESSES: redis.addresses[0]: the value is no address; want host:port",
		"PERKEY_REDIS_MODE":              "$PERKEY_REDIS_MODE: redis.mode: the value is unknown; want standalone, sentinel or cluster",
		"PERKEY_REDIS_TLS_CERT_FILE":     "$PERKEY_REDIS_TLS_CERT_FILE: redis.tls: want cert_file and key_file together",
		"PERKEY_DEFAULTS_TTL":            "$PERKEY_DEFAULTS_TTL: defaults.ttl: the value is no duration; want one such as 500ms, 15s or 1h30m",
		"PERKEY_DEFAULTS_MAX_BODY":       "$PERKEY_DEFAULTS_MAX_BODY: defaults.max_body: the value is no size; want bytes, or one such as 64KiB or 1MiB",
		"PERKEY_DEFAULTS_STATUS_PATH":    "$PERKEY_DEFAULTS_STATUS_PATH: defaults.status_path: want a path that begins and ends with a slash, or an http URL that ends with one, such as /tickets/",
		"PERKEY_REDIS_PASSWORT":          `$PERKEY_REDIS_PASSWORT: no setting has this name; did you mean "PERKEY_REDIS_PASSWORD"?`,
		"PERKEY_DEFAULTS_ON_CONFLICT":    "$PERKEY_DEFAULTS_ON_CONFLICT: no setting has this name",
		"PERKEY_REDIS_X":                 "$PERKEY_REDIS_X: no setting has this name",
		"PERKEY_REDIS_SENTINEL_PASSWORD": "$PERKEY_REDIS_SENTINEL_PASSWORD: redis.sentinel: is for mode sentinel; want that mode, or no such section",
	} {
		_, err := config.ParseIn("f.yaml", []byte("guards: {}"), map[string]string{variable: hunter})
		assert.EqualError(t, err, "config: "+problem)
	}
	// Of a value that both have, the problem is the variable's.
	_, err := config.ParseIn("f.yaml", []byte("redis: {url: 'redis://h'}"), map[string]string{"PERKEY_REDIS_ADDRESSES": "h:1"})
	assert.EqualError(t, err, "config: $PERKEY_REDIS_ADDRESSES: redis.addresses: excludes url; want one of the two")
	_, err = config.ParseIn("f.yaml", []byte("redis: {addresses: ['h:1']}\ndefaults: {allow_headers: [X-A]}"), map[string]string{
		"PERKEY_REDIS_ADDRESSES": hunter, "PERKEY_DEFAULTS_ALLOW_HEADERS": "Cookie",
	})
	assert.EqualError(t, err, "config: 2 problems:\n"+
		"\t$PERKEY_REDIS_ADDRESSES: redis.addresses[0]: the value is no address; want host:port\n"+
		"\t$PERKEY_DEFAULTS_ALLOW_HEADERS: defaults.allow_headers[0]: this header is never stored")
}

// The environment of the process is what Load and Parse read. An empty variable counts
// as none.
func TestLoadReadsTheEnvironment(t *testing.T) {
	t.Setenv("PERKEY_REDIS_URL", "redis://from-the-environment:1")
	t.Setenv("PERKEY_REDIS_POOL_SIZE", "")
	path := filepath.Join(t.TempDir(), "perkey.yaml")
	require.NoError(t, os.WriteFile(path, []byte("\ufeffguards: {}\r\n"), 0o600))
	f, err := config.Load(path)
	require.NoError(t, err)
	rt, err := config.Build(f)
	require.NoError(t, err)
	assert.Equal(t, "from-the-environment:1", rt.Redis().(*redis.Client).Options().Addr)
	assert.NoError(t, rt.Close())

	_, err = config.Load(filepath.Dir(path))
	assert.ErrorContains(t, err, "not a regular file")
	_, err = config.Load(path + "x")
	assert.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<19), 0o600))
	_, err = config.Load(path)
	assert.ErrorContains(t, err, "larger than")
}

func TestTheEnvironmentIsNotChanged(t *testing.T) {
	t.Parallel()
	env := maps.Clone(environment)
	_, _ = config.ParseIn("f.yaml", []byte("redis: {password: '${REDIS_PASSWORD}'}"), env)
	assert.Equal(t, environment, env)
}
