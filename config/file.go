package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// File is a valid configuration file. It is safe for concurrent use. Printed, logged or marshaled,
// it does not show its content.
type File struct {
	name   string
	spec   document
	places map[string]strictyaml.Place // of values, by their paths
	sum    [sha256.Size]byte           // of what was read
}

// Load reads and checks a file, with the environment variables that it refers to; the package
// documentation describes both. If the file has mistakes the error is an *Error, which wraps
// core.ErrInvalidOption; if it cannot be read, that of package os.
func Load(path string) (*File, error) {
	data, err := readFile(path, strictyaml.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, data)
}

// Parse is Load for data that was read already. Problems have name as their Source, and paths in
// the file are relative to name's directory.
func Parse(name string, data []byte) (*File, error) {
	return parse(name, data, environ())
}

func parse(name string, data []byte, env map[string]string) (*File, error) {
	f := &File{name: name, sum: sha256.Sum256(data)}
	found, readable := strictyaml.Decode(data, &f.spec, env)
	f.places = found.Places()
	r := &report{found, f}
	if readable {
		c := checker{r, env}
		c.check()
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return f, nil
}

func environ() map[string]string {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}

// Name returns the file's name, as problems have it.
func (f *File) Name() string { return f.name }

// String returns the name, and how many queues, guards and so on the file has.
func (f File) String() string {
	return fmt.Sprintf("config.File(%s: %d queues, %d guards, %d routes)", f.name, len(f.spec.Queues), len(f.spec.Guards), len(f.spec.Routes))
}

// GoString is String.
func (f File) GoString() string { return f.String() }

// Format prints String, for every verb.
func (f File) Format(s fmt.State, _ rune) { fmt.Fprint(s, f.String()) }

// LogValue is String.
func (f File) LogValue() slog.Value { return slog.StringValue(f.String()) }

// MarshalText is String: a File is read from YAML, but not written.
func (f File) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// readFile reads a regular file that is not too large: a pipe or a device might
// never end.
func readFile(path string, most int64) (data []byte, err error) {
	info, err := os.Stat(path) // to open a pipe may block
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err = io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d bytes", most)}
	}
	return data, err
}
