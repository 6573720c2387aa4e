package config

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

const (
	standalone = "standalone"
	sentinel   = "sentinel"
	cluster    = "cluster"
)

// given reports whether the file says which Redis to use.
func (s *redisSection) given() bool { return s.URL.Given() || len(s.Addresses) > 0 }

func (s *redisSection) mode() string { return cmp.Or(s.Mode, standalone) }

// redisURL is what a URL says. Its errors do not: it may hold a password.
type redisURL struct {
	address, username, password string
	tls                         bool
	db                          int
}

func parseURL(text string) (redisURL, error) {
	const expected = "; expected one such as redis://localhost:6379/0, or rediss:// for TLS"
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Opaque != "" {
		return redisURL{}, errors.New("not the URL of a Redis" + expected)
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" {
		return redisURL{}, errors.New("the URL has an unknown scheme" + expected)
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return redisURL{}, errors.New("the URL has a query or a fragment; use the other fields of redis instead")
	}
	r := redisURL{address: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379")), username: u.User.Username(), tls: u.Scheme == "rediss"}
	r.password, _ = u.User.Password()
	if !isAddress(r.address) {
		return redisURL{}, errors.New("the URL has an invalid port" + expected)
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		if r.db, err = strconv.Atoi(db); err != nil || r.db < 0 {
			return redisURL{}, errors.New("the path of the URL is not the number of a database" + expected)
		}
	}
	return r, nil
}

// isPlain reports whether a password stands in the file.
func isPlain(s strictyaml.Secret) bool { return s.Given() && s.Literal() == s.Reveal() }

// plainPassword reports whether a URL has a password that stands in the file.
func plainPassword(text string) bool {
	_, rest, _ := strings.Cut(text, "://")
	user, _, ok := cutLast(rest, "@")
	_, password, _ := strings.Cut(user, ":")
	return ok && password != ""
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && host != "" && bad == nil && n > 0
}

const plainPasswordHere = "is in plain text; use ${NAME}, an environment variable, or password_file, " +
	"or allow it by redis.allow_plain_password: true"

func (c *checker) checkRedis(s *redisSection) {
	at := func(name string) string { return member("redis", name) }
	var u redisURL
	if s.URL.Given() {
		var err error
		if u, err = parseURL(s.URL.Reveal()); err != nil {
			c.At(at("url"), "%v", err)
		}
	}
	if plainPassword(s.URL.Literal()) && !s.AllowPlainPassword {
		c.At(at("url"), "the password %s", plainPasswordHere)
	}
	if isPlain(s.Password) && !s.AllowPlainPassword {
		c.At(at("password"), plainPasswordHere)
	}
	const twice = "is given twice; give one of url, password and password_file"
	if s.PasswordFile != "" && (s.Password.Given() || u.password != "") {
		c.At(at("password_file"), "the password %s", twice)
	} else if s.Password.Given() && u.password != "" {
		c.At(at("password"), twice)
	}
	if u.username != "" && s.Username != "" {
		c.At(at("username"), "is given twice; give it in url or here")
	}
	if u.db != 0 && s.DB != 0 {
		c.At(at("db"), "is given twice; give it in url or here")
	}
	if s.TLS != nil {
		if s.URL.Given() && !u.tls && !c.Failed(at("url")) {
			c.At(at("tls"), "the URL says redis://, which is without TLS; use rediss://, or remove tls")
		}
		if (s.TLS.CertFile == "") != (s.TLS.KeyFile == "") {
			c.At(at("tls"), "cert_file and key_file must be given together")
		}
	}
	if s.PoolSize > 0 && s.MinIdleConns > s.PoolSize {
		c.At(at("min_idle_conns"), "%d is more than pool_size, %d", s.MinIdleConns, s.PoolSize)
	}
	c.checkMode(s, u)
}

func (c *checker) checkMode(s *redisSection, u redisURL) {
	at := func(name string) string { return member("redis", name) }
	for i, address := range s.Addresses {
		socket := s.mode() == standalone && strings.HasPrefix(address, "/")
		if path := item(at("addresses"), i); !isAddress(address) && !socket && !c.Failed(path) {
			c.At(path, "expected an address, as host:port")
		}
	}
	unknown := c.Failed(at("mode"))
	switch {
	case unknown:
	case s.mode() == sentinel:
		if s.URL.Given() {
			c.At(at("url"), "mode sentinel takes no url; give the sentinels' addresses")
		}
		if len(s.Addresses) == 0 && !s.URL.Given() && !c.Failed(at("addresses")) {
			c.At(at("mode"), "mode sentinel needs redis.addresses: those of the sentinels")
		}
		if (s.Sentinel == nil || s.Sentinel.Master == "") && !c.Failed(at("sentinel")) {
			c.At(at("mode"), "mode sentinel needs redis.sentinel.master: the name of the master")
		}
	case s.mode() == cluster:
		if s.DB != 0 || u.db != 0 {
			c.At(at("mode"), "a cluster has only database 0")
		}
	case len(s.Addresses) > 1:
		c.At(at("addresses"), "mode standalone takes one address; use mode cluster or sentinel for several")
	}
	if q := s.Sentinel; q != nil {
		path := at("sentinel")
		if s.mode() != sentinel && !unknown {
			c.At(path, "applies only to mode sentinel; use that mode, or remove it")
		}
		if isPlain(q.Password) && !s.AllowPlainPassword {
			c.At(member(path, "password"), plainPasswordHere)
		}
		if q.Password.Given() && q.PasswordFile != "" {
			c.At(member(path, "password_file"), "the password is given twice; give one of password and password_file")
		}
	}
}

// maxSecret is the size of the largest file with a password, a key or certificates.
const maxSecret = 1 << 20

// near is where a file is that another file names.
func (f *File) near(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(f.name), path)
}

// read reads a file that the value at path names. What it holds is never shown, and
// neither is its name: somebody may have put there what should be in it.
func (r *report) read(path, name string) ([]byte, bool) {
	data, err := readFile(r.file.near(name), maxSecret)
	if err != nil {
		r.At(path, "cannot read the file: %v", nameless(err))
	}
	return data, err == nil
}

// readSecret reads a file with one line, once.
func (r *report) readSecret(path, name string) string {
	data, ok := r.read(path, name)
	if !ok {
		return ""
	}
	text, err := secretLine(data)
	if err != nil {
		r.At(path, "%v", err)
	}
	return text
}

// connect makes the client. It does not talk to Redis.
func (r *report) connect(s *redisSection, log func() *slog.Logger) redis.UniversalClient {
	o := &redis.UniversalOptions{
		Addrs: s.Addresses, DB: s.DB, Username: s.Username, Password: s.Password.Reveal(),
		PoolSize: s.PoolSize, MinIdleConns: s.MinIdleConns, ConnMaxLifetime: s.ConnMaxLifetime, PoolTimeout: s.PoolTimeout,
		DialTimeout: s.DialTimeout, ReadTimeout: s.ReadTimeout, WriteTimeout: s.WriteTimeout,
	}
	if s.MaxRetries != nil {
		if o.MaxRetries = *s.MaxRetries; o.MaxRetries == 0 {
			o.MaxRetries = -1 // go-redis's none
		}
	}
	secure := s.TLS
	if s.URL.Given() {
		u, err := parseURL(s.URL.Reveal())
		if err != nil {
			r.At("redis.url", "%v", err)
		}
		o.Addrs, o.DB = []string{u.address}, cmp.Or(o.DB, u.db)
		o.Username, o.Password = cmp.Or(o.Username, u.username), cmp.Or(o.Password, u.password)
		if u.tls && secure == nil {
			secure = &tlsSection{}
		}
	}
	if s.PasswordFile != "" {
		file := rotate(r, log, []string{"redis.password_file"}, []string{s.PasswordFile}, password)
		o.CredentialsProviderContext = func(context.Context) (string, string, error) { return o.Username, file.now(), nil }
	}
	var config func() *tls.Config
	if secure != nil {
		config = r.secure(secure, log)
	}
	if s.mode() == sentinel && s.Sentinel != nil {
		q := s.Sentinel
		o.MasterName, o.SentinelUsername, o.SentinelPassword = q.Master, q.Username, q.Password.Reveal()
		if q.PasswordFile != "" {
			o.OnConnect = sentinelLogin(q.Username, rotate(r, log, []string{"redis.sentinel.password_file"}, []string{q.PasswordFile}, password))
		}
	}
	if r.Failed("") {
		return nil // the client would have to be closed
	}
	if config != nil {
		o.TLSConfig, o.Dialer = config(), dialer(cmp.Or(s.DialTimeout, defaultDialTimeout), config)
	}
	switch s.mode() {
	case cluster:
		cluster := o.Cluster()
		// go-redis's own would dial a dead primary for a minute.
		cluster.ClusterStateReloadInterval = time.Second
		return redis.NewClusterClient(cluster)
	case sentinel:
		return redis.NewFailoverClient(o.Failover())
	default:
		return redis.NewClient(o.Simple())
	}
}

// defaultDialTimeout is go-redis's.
const defaultDialTimeout = 5 * time.Second

// dialer opens each connection with the TLS settings of that moment.
func dialer(timeout time.Duration, config func() *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return redis.NewDialer(&redis.Options{DialTimeout: timeout, TLSConfig: config()})(ctx, network, addr)
	}
}

// secure makes the TLS settings, with what the files hold when it is asked.
func (r *report) secure(s *tlsSection, log func() *slog.Logger) func() *tls.Config {
	fixed := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName, InsecureSkipVerify: s.InsecureSkipVerify}
	var ca *rotating[*x509.CertPool]
	if s.CAFile != "" {
		ca = rotate(r, log, []string{"redis.tls.ca_file"}, []string{s.CAFile}, authorities)
	}
	var pair *rotating[tls.Certificate]
	if s.CertFile != "" && s.KeyFile != "" {
		pair = rotate(r, log, []string{"redis.tls.cert_file", "redis.tls.key_file"}, []string{s.CertFile, s.KeyFile}, keyPair)
	}
	return func() *tls.Config {
		c := fixed.Clone()
		if ca != nil {
			c.RootCAs = ca.now()
		}
		if pair != nil {
			c.Certificates = []tls.Certificate{pair.now()}
		}
		return c
	}
}
