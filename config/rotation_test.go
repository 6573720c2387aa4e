package config_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

const rotatedFile = `
redis:
  addresses: ['%s']
  username: shop
  password_file: password
  conn_max_lifetime: 1s
  dial_timeout: 1m # a busy machine is no fault
  read_timeout: 1m
  write_timeout: 1m
  tls: {ca_file: ca.pem, server_name: redis.test, cert_file: client.pem, key_file: client.key}
routes:
  POST /orders/{id}: {key: "order:{param.id}", on_conflict: {policy: retry, max_wait: 30s}}
`

// rotation is a Runtime on a Redis that wants a password and a client's certificate over TLS, and traffic through it.
type rotation struct {
	t     *testing.T
	dir   string        // of the files, the server's own among them
	admin *redis.Client // past TLS
	addr  string
	rt    *config.Runtime
	logs  testbed.Log

	done, failed atomic.Int64
	failure      atomic.Value
}

func newRotation(t *testing.T, password string, ca *authority) *rotation {
	t.Helper()
	r := &rotation{t: t, dir: t.TempDir()}
	r.write("password", []byte(password+"\n"))
	r.write("ca.pem", ca.pem)
	r.issue(ca, "client")
	r.issue(ca, "server")
	r.write("clients.pem", ca.pem)
	in := func(name string) string { return filepath.Join(r.dir, name) }
	server, addr := redistest.StartTLS(t, "--tls-cert-file", in("server.both"), "--tls-key-file", in("server.both"),
		"--tls-ca-cert-file", in("clients.pem"), "--tls-auth-clients", "yes")
	r.addr = addr
	r.admin = redistest.Client(t, &redis.Options{Addr: server.Addr})
	r.serve("acl", "setuser", "shop", "on", ">"+password, "~*", "&*", "+@all")
	f, err := config.ParseIn(in("perkey.yaml"), fmt.Appendf(nil, rotatedFile, addr), nil)
	require.NoError(t, err)
	r.rt, err = config.Build(f, config.WithLogger(r.logs.Logger()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.rt.Close() })
	return r
}

func (r *rotation) write(name string, data []byte) { write(r.t, r.dir, name, data) }

// issue writes a certificate and its key, in files of their own and in one.
func (r *rotation) issue(ca *authority, name string) {
	r.t.Helper()
	dns := map[string]string{"server": "redis.test"}[name] + name
	cert, key := ca.issue(r.t, strings.TrimSuffix(dns, "server"))
	r.write(name+".pem", cert)
	r.write(name+".key", key)
	r.write(name+".both", append(cert, key...))
}

// serve has the server do something.
func (r *rotation) serve(command ...any) {
	r.t.Helper()
	require.NoError(r.t, r.admin.Do(r.t.Context(), command...).Err())
}

// reconnect waits for requests over connections that were made since it was called.
func (r *rotation) reconnect() {
	r.t.Helper()
	before, last := r.done.Load(), slices.Max(r.connections())
	redistest.Eventually(r.t, func() bool {
		made := slices.DeleteFunc(r.connections(), func(id int) bool { return id <= last })
		return len(made) > 1 && r.done.Load() > before+20
	}, "requests over new connections")
	require.Zero(r.t, r.failed.Load(), "%v\n%v", r.failure.Load(), &r.logs)
}

// connections are the ids of the Runtime's, which grow.
func (r *rotation) connections() (ids []int) {
	r.t.Helper()
	list, err := r.admin.ClientList(r.t.Context()).Result()
	require.NoError(r.t, err)
	for line := range strings.Lines(list) {
		var id int
		if _, err := fmt.Sscanf(line, "id=%d", &id); err == nil && strings.Contains(line, " user=shop ") {
			ids = append(ids, id)
		}
	}
	return append(ids, 0)
}

// settled waits until new connections use what a file holds now.
func (r *rotation) settled(setting string) {
	r.t.Helper()
	before := strings.Count(r.logs.String(), "setting="+setting)
	redistest.Eventually(r.t, func() bool { return strings.Count(r.logs.String(), "setting="+setting) > before }, setting+": the new one is used")
	r.reconnect()
}

// traffic sends requests until end is called.
func (r *rotation) traffic(clients int) (end func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") })
	handler := httplock.FromConfig(r.rt)(mux)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			for i := c; ctx.Err() == nil; i++ {
				time.Sleep(5 * time.Millisecond) // other tests run too
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, request("POST", fmt.Sprintf("/orders/%d", i%(clients/2))))
				r.done.Add(1)
				if w.Code != http.StatusOK {
					r.failed.Add(1)
					r.failure.Store(fmt.Sprint(w.Code, " ", w.Body))
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// ping talks to the server with a file of another process.
func (r *rotation) ping(password string, trust *authority, cert string) error {
	r.t.Helper()
	dir := r.t.TempDir()
	write(r.t, dir, "password", []byte(password))
	write(r.t, dir, "ca.pem", trust.pem)
	write(r.t, dir, "client.pem", []byte(cert))
	write(r.t, dir, "client.key", []byte(cert))
	file := strings.Replace(fmt.Sprintf(rotatedFile, r.addr), "conn_max_lifetime: 1s", "max_retries: 0", 1)
	return lockOnce(r.t, dir, file, nil)
}

func TestRotation_UnderTraffic(t *testing.T) {
	t.Parallel()
	const oldPassword, newPassword = hunter, "n3w-" + hunter
	before, after := newAuthority(t), newAuthority(t)
	r := newRotation(t, oldPassword, before)
	oldCert, err := os.ReadFile(filepath.Join(r.dir, "client.both"))
	require.NoError(t, err)
	end := r.traffic(8)
	defer end()
	reload := func(setting, name string) { r.serve("config", "set", setting, filepath.Join(r.dir, name)) }
	r.reconnect()

	// The password.
	r.serve("acl", "setuser", "shop", ">"+newPassword)
	r.write("password", []byte(newPassword+"\n"))
	r.settled("redis.password_file")
	r.serve("acl", "setuser", "shop", "<"+oldPassword)
	r.reconnect()
	require.Error(t, r.ping(oldPassword, before, string(oldCert)), "the old password is refused")

	// The authority of the server's certificate.
	r.write("ca.pem", bytes.Join([][]byte{before.pem, after.pem}, nil))
	r.settled("redis.tls.ca_file")
	r.issue(after, "server")
	reload("tls-cert-file", "server.both")
	r.reconnect()
	r.write("ca.pem", after.pem)
	r.settled("redis.tls.ca_file")
	require.Error(t, r.ping(newPassword, before, string(oldCert)), "the old authority did not issue the server's certificate")

	// The client's certificate.
	r.write("clients.pem", bytes.Join([][]byte{before.pem, after.pem}, nil))
	reload("tls-ca-cert-file", "clients.pem")
	r.issue(after, "client")
	r.settled("redis.tls.cert_file")
	r.write("clients.pem", after.pem)
	reload("tls-ca-cert-file", "clients.pem")
	r.reconnect()
	require.Error(t, r.ping(newPassword, after, string(oldCert)), "the old certificate is refused")

	end()
	t.Logf("%d requests, %d failed", r.done.Load(), r.failed.Load())
	assert.Zero(t, r.failed.Load(), "%v", r.failure.Load())
	for _, secret := range []string{oldPassword, newPassword, "PRIVATE KEY"} {
		assert.NotContains(t, r.logs.String(), secret)
	}
}

// A file that is not whole, wrong or missing changes nothing, and is told of once.
func TestRotation_KeepsWhatCanBeUsed(t *testing.T) {
	t.Parallel()
	before, after := newAuthority(t), newAuthority(t)
	r := newRotation(t, hunter, before)
	end := r.traffic(8)
	defer end()
	cert, err := os.ReadFile(filepath.Join(r.dir, "client.pem"))
	require.NoError(t, err)
	_, another := before.issue(t, "client")
	half := func(data []byte) []byte { return data[:len(data)/2] }
	type bad struct {
		logged string
		held   []byte // nil: there is no file
	}
	for _, c := range []struct {
		file, setting string // of a file that cannot be read
		bad           []bad
		good          []byte
	}{
		{"password", "redis.password_file", []bad{
			{"no such file or directory", nil}, {"the file is empty", []byte{}}, {"the file has more than one line", []byte(hunter + "\n" + hunter + "\n")},
		}, []byte(hunter + "\r\n")},
		{"ca.pem", "redis.tls.ca_file", []bad{
			{"no such file or directory", nil},
			{"the file has no certificate in PEM form", half(before.pem)},
			{"the file ends within a certificate", slices.Concat(after.pem, half(before.pem))},
		}, slices.Concat(after.pem, before.pem)},
		{"client.key", "redis.tls.key_file", []bad{{"no such file or directory", nil}}, nil},
		{"client.key", "redis.tls.cert_file", []bad{{"are not a pair in PEM form", another}}, nil},
		{"client.pem", "redis.tls.cert_file", []bad{
			{"the file ends within a certificate", slices.Concat(cert, half(cert))},
		}, nil},
	} {
		path := filepath.Join(r.dir, c.file)
		was, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, bad := range c.bad {
			before := strings.Count(r.logs.String(), bad.logged)
			if bad.held == nil {
				require.NoError(t, os.Remove(path))
			} else {
				r.write(c.file, bad.held)
				long := time.Now().Add(-time.Hour)
				require.NoError(t, os.Chtimes(path, long, long))
			}
			redistest.Eventually(t, func() bool { return strings.Count(r.logs.String(), bad.logged) > before }, c.file+": "+bad.logged)
			r.reconnect()
			assert.Equal(t, before+1, strings.Count(r.logs.String(), bad.logged), "%s: told once: %s", c.file, bad.logged)
			assert.Regexp(t, `level=WARN msg="config: a file cannot be used[^"]*" setting=`+c.setting+` error=".*`+bad.logged, r.logs.String())
		}
		if r.write(c.file, was); c.good != nil {
			r.write(c.file, c.good)
			r.settled(c.setting)
		}
	}
	assert.NotContains(t, r.logs.String(), hunter)
	assert.NotContains(t, r.logs.String(), r.dir)
}

func TestRotation_OfTheSentinelsPassword(t *testing.T) {
	t.Parallel()
	const oldPassword, newPassword = hunter, "n3w-" + hunter
	s := redistest.StartSentinel(t)
	sentinel := s.Addrs()[0]
	boss := redistest.Client(t, &redis.Options{Addr: sentinel, Username: "boss", Password: "boss"})
	serve := func(command ...any) {
		t.Helper()
		require.NoError(t, boss.Do(t.Context(), command...).Err())
	}
	require.NoError(t, redistest.Client(t, &redis.Options{Addr: sentinel}).ACLSetUser(t.Context(), "boss", "on", ">boss", "+@all", "&*").Err())
	serve("acl", "setuser", "watcher", "on", ">"+oldPassword, "+@all", "&*")
	serve("acl", "setuser", "default", "off")
	dir := t.TempDir()
	write(t, dir, "password", []byte(oldPassword))
	var logs testbed.Log
	file := fmt.Sprintf("redis: {mode: sentinel, addresses: ['%s'], sentinel: {master: perkey, username: watcher, password_file: password}}", sentinel)
	f, err := config.ParseIn(filepath.Join(dir, "perkey.yaml"), []byte(file), nil)
	require.NoError(t, err)
	rt, err := config.Build(f, config.WithLogger(logs.Logger()))
	require.NoError(t, err)
	defer rt.Close()
	lock := func() error {
		return rt.Locker().Do(t.Context(), "k", func(context.Context) error { return nil })
	}
	require.NoError(t, lock())

	serve("acl", "setuser", "watcher", ">"+newPassword)
	write(t, dir, "password", []byte(newPassword))
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(dir, "password"), long, long))
	serve("acl", "setuser", "watcher", "<"+oldPassword)
	// go-redis asks the sentinels for each connection to the server.
	serve("client", "kill", "user", "watcher")
	primary := redistest.Client(t, &redis.Options{Addr: s.Primary(t).Addr})
	redistest.Eventually(t, func() bool {
		require.NoError(t, primary.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
		return lock() == nil && strings.Contains(logs.String(), "setting=redis.sentinel.password_file")
	}, "a lock over connections that the sentinel was asked for")
	list, err := boss.ClientList(t.Context()).Result()
	require.NoError(t, err)
	assert.Contains(t, list, " user=watcher ")
	assert.NotContains(t, logs.String(), hunter)
}
