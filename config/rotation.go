package config

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// settle is how long ago a file must have changed: half of what it is to hold may be there before.
const settle = time.Second

// rotating is what files hold, read again whenever it is asked for: for each new connection. A file that cannot be
// used leaves the last value that could. It is safe for concurrent use.
type rotating[T any] struct {
	settings, files []string                       // where the configuration names each file, and where it is
	parse           func(held [][]byte) (T, error) // its errors show nothing of the files
	log             func() *slog.Logger

	mu      sync.Mutex
	held    [][]byte // what value was made of
	value   T
	trouble string // what was logged last, until the files are right
}

// rotate reads files for the first time.
func rotate[T any](r *report, log func() *slog.Logger, settings, names []string, parse func(held [][]byte) (T, error)) *rotating[T] {
	v := &rotating[T]{settings: settings, parse: parse, log: log}
	for i, name := range names {
		v.files = append(v.files, r.file.near(name))
		if held, ok := r.read(settings[i], name); ok {
			v.held = append(v.held, held)
		}
	}
	if len(v.held) < len(names) {
		return v
	}
	var err error
	if v.value, err = parse(v.held); err != nil {
		r.At(settings[0], "%v", err)
	}
	return v
}

// now is the value that new connections use.
func (v *rotating[T]) now() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	held, changed, setting, err := v.read()
	if err == nil && slices.EqualFunc(held, v.held, bytes.Equal) {
		v.trouble = ""
		return v.value
	}
	var value T
	if err == nil {
		value, err = v.parse(held)
	}
	switch {
	case err != nil && err.Error() != v.trouble:
		v.trouble = err.Error()
		v.log().Warn("config: a file cannot be used: its previous content stays in force", "setting", setting, "error", v.trouble)
	case err == nil && time.Since(changed).Abs() >= settle:
		v.held, v.value, v.trouble = held, value, ""
		v.log().Info("config: a file has changed: new connections use its new content", "setting", setting)
	}
	return v.value
}

// read reads the files, and when the last of them changed. The setting is that of the file that cannot be read, or of the first.
func (v *rotating[T]) read() (held [][]byte, changed time.Time, setting string, err error) {
	for i, file := range v.files {
		data, err := readFile(file, maxSecret)
		var info fs.FileInfo
		if err == nil {
			info, err = os.Stat(file) // after what was read
		}
		if err != nil {
			return nil, changed, v.settings[i], nameless(err)
		}
		held = append(held, data)
		if at := info.ModTime(); at.After(changed) {
			changed = at
		}
	}
	return held, changed, v.settings[0], nil
}

// nameless is an error without the name of its file.
func nameless(err error) error {
	if named, ok := errors.AsType[*fs.PathError](err); ok {
		return named.Err
	}
	return err
}

// secretLine is what a file with one line holds.
func secretLine(held []byte) (string, error) {
	text := strings.TrimRight(string(held), "\r\n")
	switch {
	case text == "":
		return "", errors.New("the file is empty")
	case strings.ContainsAny(text, "\r\n"):
		return "", errors.New("the file has more than one line; expected the secret alone")
	}
	return text, nil
}

func password(held [][]byte) (string, error) { return secretLine(held[0]) }

func authorities(held [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	switch {
	case !pool.AppendCertsFromPEM(held[0]):
		return nil, errors.New("the file has no certificate in PEM form")
	case isCut(held[0]):
		return nil, errors.New("the file ends within a certificate")
	}
	return pool, nil
}

func keyPair(held [][]byte) (pair tls.Certificate, err error) {
	if pair, err = tls.X509KeyPair(held[0], held[1]); err != nil {
		return pair, errors.New("the certificate and the key are not a pair in PEM form")
	}
	if isCut(held[0]) {
		return pair, errors.New("the file ends within a certificate")
	}
	return pair, nil
}

// isCut reports whether PEM ends within a block.
func isCut(text []byte) bool {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(text) {
		text = rest
	}
	return bytes.Contains(text, []byte("-----BEGIN"))
}

// sentinelLogin has connections to sentinels say who they are: go-redis takes a password for them only once. It
// is for OnConnect, which those to the servers meet too.
func sentinelLogin(username string, password *rotating[string]) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, conn *redis.Conn) error {
		if strings.HasPrefix(conn.String(), "Redis<FailoverClient ") { // go-redis's address of the server, whichever it is
			return nil
		}
		if username == "" {
			return conn.Auth(ctx, password.now()).Err()
		}
		return conn.AuthACL(ctx, username, password.now()).Err()
	}
}
