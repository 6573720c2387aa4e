package config_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// lockOnce builds a file that is in dir, and takes a key.
func lockOnce(t *testing.T, dir, file string, env map[string]string) error {
	t.Helper()
	f, err := config.ParseIn(filepath.Join(dir, "perkey.yaml"), []byte(file), env)
	require.NoError(t, err)
	rt, err := config.Build(f, config.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	err = rt.Locker().Do(t.Context(), "k", func(context.Context) error { return nil })
	return errors.Join(err, rt.Shutdown(t.Context()))
}

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
}

func TestRedis_AnACLUserWithAPassword(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
	require.NoError(t, rdb.Do(t.Context(), "acl", "setuser", "shop", "on", ">"+redisPass, "~*", "&*", "+@all").Err())
	require.NoError(t, rdb.Do(t.Context(), "acl", "setuser", "default", "off").Err())
	dir := t.TempDir()
	write(t, dir, "right", []byte(redisPass+"\n"))
	write(t, dir, "wrong", []byte(hunter+"\n"))
	env := map[string]string{"P": redisPass}
	at := "redis: {addresses: ['" + server.Addr + "'], username: shop, max_retries: 0, "
	assert.NoError(t, lockOnce(t, dir, at+"password: '${P}'}", env))
	assert.NoError(t, lockOnce(t, dir, at+"password_file: right}", env))
	assert.NoError(t, lockOnce(t, dir, "redis: {url: 'redis://shop:${P}@"+server.Addr+"/2'}", env))
	err := lockOnce(t, dir, at+"password_file: wrong}", env)
	assert.ErrorIs(t, err, core.ErrUnavailable)
	assert.NotContains(t, err.Error(), hunter)
}

func TestRedis_SentinelAndCluster(t *testing.T) {
	t.Parallel()
	var master string
	var sentinels []string
	redistest.StartSentinel(t).Client(t, func(o *redis.FailoverOptions) { master, sentinels = o.MasterName, o.SentinelAddrs })
	file := "redis: {mode: sentinel, addresses: ['" + strings.Join(sentinels, "', '") + "'], sentinel: {master: " + master + "}}"
	assert.NoError(t, lockOnce(t, "", file, nil))

	var nodes []string
	redistest.StartCluster(t, 3, 0).Client(t, func(o *redis.ClusterOptions) { nodes = o.Addrs })
	assert.NoError(t, lockOnce(t, "", "redis: {mode: cluster, addresses: ['"+nodes[0]+"']}", nil))
	assert.NoError(t, lockOnce(t, "", "redis: {mode: cluster, url: 'redis://"+nodes[1]+"'}", nil))
}

// A sentinel that hears what a client says to it, and lets nobody in.
func TestRedis_SentinelsHaveAPasswordOfTheirOwn(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var heard testbed.Log
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(5 * time.Second)) // some say nothing
				said := make([]byte, 512)
				for {
					n, err := conn.Read(said)
					if err != nil {
						return
					}
					_, _ = heard.Write(said[:n])
					for range bytes.Count(said[:n], []byte("*")) { // a reply for each command
						_, _ = io.WriteString(conn, "-NOAUTH Authentication required.\r\n")
					}
				}
			})
		}
	})
	dir := t.TempDir()
	write(t, dir, "sentinel", []byte(sentinelPs+"\n"))
	for _, password := range []string{"password_file: sentinel", "password: '${SENTINEL_PASSWORD}'"} {
		before := strings.Count(heard.String(), sentinelPs)
		redistest.Eventually(t, func() bool { // a client may leave before it has said anything
			err := lockOnce(t, dir, "redis: {mode: sentinel, addresses: ['"+l.Addr().String()+"'], password: '${REDIS_PASSWORD}', max_retries: 0, "+
				"sentinel: {master: m, username: watcher, "+password+"}}", environment)
			assert.ErrorIs(t, err, core.ErrUnavailable)
			return strings.Count(heard.String(), sentinelPs) > before
		}, "a client that says who it is")
	}
	assert.Contains(t, heard.String(), "watcher")
	assert.NotContains(t, heard.String(), redisPass)
	_ = l.Close()
	serving.Wait()
}

func TestRedis_TLSWithAClientsCertificate(t *testing.T) {
	t.Parallel()
	dir, ca, other := t.TempDir(), newAuthority(t), newAuthority(t)
	write(t, dir, "ca.pem", ca.pem)
	write(t, dir, "other.pem", other.pem)
	cert, key := ca.issue(t, "client")
	write(t, dir, "client.pem", cert)
	write(t, dir, "client.key", key)
	cert, key = ca.issue(t, "redis.test")
	write(t, dir, "server", append(cert, key...))
	in := func(name string) string { return filepath.Join(dir, name) }
	_, addr := redistest.StartTLS(t, "--tls-cert-file", in("server"), "--tls-key-file", in("server"), "--tls-ca-cert-file", in("ca.pem"), "--tls-auth-clients", "yes")
	with := func(tls string) error {
		return lockOnce(t, dir, "redis: {addresses: ['"+addr+"'], max_retries: 0, dial_timeout: 2s, tls: {"+tls+"}}", nil)
	}
	const client = "cert_file: client.pem, key_file: client.key"
	assert.NoError(t, with("ca_file: ca.pem, server_name: redis.test, "+client))
	assert.NoError(t, with("insecure_skip_verify: true, "+client))
	assert.ErrorIs(t, with("ca_file: ca.pem, server_name: redis.test"), core.ErrUnavailable, "without a certificate")
	assert.ErrorIs(t, with("ca_file: ca.pem, "+client), core.ErrUnavailable, "another name")
	assert.ErrorIs(t, with("ca_file: other.pem, server_name: redis.test, "+client), core.ErrUnavailable, "another authority")
	assert.ErrorIs(t, with("server_name: redis.test, "+client), core.ErrUnavailable, "unknown to the system")
	assert.ErrorIs(t, lockOnce(t, dir, "redis: {addresses: ['"+addr+"'], max_retries: 0}", nil), core.ErrUnavailable, "no TLS")
}

// A password with a line break would only be found to be wrong by Redis.
func TestPasswordFile_HasOneLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "both", []byte("shop\n"+hunter+"\r\n"))
	f, err := config.ParseIn(filepath.Join(dir, "f.yaml"), []byte("redis: {url: 'redis://h', password_file: both}"), nil)
	require.NoError(t, err)
	_, err = config.Build(f)
	require.ErrorContains(t, err, "f.yaml:1:42: redis.password_file: the file has more than one line")
	assert.NotContains(t, err.Error(), hunter)
}

func TestFiles_ThatCannotBeReadAreProblems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "empty", nil)
	write(t, dir, "text", []byte(hunter))
	f, err := config.ParseIn(filepath.Join(dir, "f.yaml"), []byte(`
redis:
  addresses: [h:1]
  password_file: empty
  tls: {ca_file: text, cert_file: text, key_file: text}
queues:
  a: {encryption: {current: k, keys: {k: {file: none}, l: {file: text}}}}
  b: {encryption: {current: k, keys: {k: {file: key}, l: {file: key}}}}
`), nil)
	require.NoError(t, err)
	write(t, dir, "key", []byte(sealingKey+"\n"))
	_, err = config.Build(f)
	got := placed(t, err)
	for i := range got {
		got[i] = strings.ReplaceAll(got[i], dir, "D")
	}
	assert.Equal(t, []string{
		"D/f.yaml:4:18: redis.password_file: the file is empty",
		"D/f.yaml:5:18: redis.tls.ca_file: the file has no certificate in PEM form",
		"D/f.yaml:5:35: redis.tls.cert_file: the certificate and the key are not a pair in PEM form",
		"D/f.yaml:7:49: queues.a.encryption.keys.k.file: cannot read the file: no such file or directory",
		"D/f.yaml:7:66: queues.a.encryption.keys.l.file: expected a key of 32 random bytes in base64, as openssl rand -base64 32 makes one",
	}, got)
	assert.NotContains(t, err.Error(), hunter)

	f, err = config.ParseIn(filepath.Join(dir, "f.yaml"),
		[]byte("redis: {addresses: ['h:1']}\nqueues: {b: {encryption: {current: k, keys: {k: {file: key}, l: {env: K}}}}}"), map[string]string{"K": sealingKey})
	require.NoError(t, err)
	_, err = config.Build(f)
	assert.EqualError(t, err, "config: "+dir+`/f.yaml:2:10: queues.b: keys "k" and "l" are the same`)
	assert.NotContains(t, err.Error(), sealingKey)
}

func TestEncryption_QueuesHaveTheKeysOfTheFile(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, `
queues: {q: {encryption: {current: k, keys: {k: {env: SHIP_KEY}}}}}
routes:
  POST /x: {key: x, fixed_key: true, anonymous: true, on_conflict: {policy: delay, queue: q}}
`)
	defer hold(t, rt, "x")()
	require.Equal(t, 202, serve(rt, "/x").do(request("POST", "/x?secret=in-the-query")).Code)
	payload, err := rt.Queue("q").Payload(t.Context(), queued(t, rt, "q")[0].ID)
	require.NoError(t, err)
	assert.Contains(t, string(payload), "in-the-query")
	rdb := env.Client(t)
	for _, name := range redistest.Keys(t, rdb, env.Prefix) {
		if fields, err := rdb.HGetAll(t.Context(), name).Result(); err == nil {
			assert.NotContains(t, fmt.Sprint(fields), "in-the-query", name)
		}
	}
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(own)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

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

	// Nothing else of the environment counts.
	o = options(t, "redis: {url: 'redis://h:1'}", map[string]string{"PERKEY_REDIS_URL": "redis://other:2", "PERKEY_REDIS_PORT": "tcp://10.0.0.1:6379"})
	assert.Equal(t, "h:1", o.Addr)
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
