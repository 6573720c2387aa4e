package httplock

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/perkey-go/perkey/core"
)

const (
	// DefaultMaxBody is how much of a body is kept while a request waits or is
	// parked, unless WithMaxBody says otherwise.
	DefaultMaxBody = 1 << 20
	// MaxMaxBody bounds WithMaxBody: each waiting request holds that much memory.
	MaxMaxBody = 64 << 20
)

// Option configures a Middleware.
type Option func(*Middleware) error

// LockSafeMethods makes GET, HEAD and OPTIONS need the key too, as other methods
// do.
func LockSafeMethods() Option { return safeMethods(safeLocked) }

// SharedForSafeMethods makes GET, HEAD and OPTIONS need the key too, but together
// with one another: they run at the same time, and while none of them runs the
// other methods take turns. One that comes after a waiting POST waits behind it.
func SharedForSafeMethods() Option { return safeMethods(safeShared) }

// safeMode says what GET, HEAD and OPTIONS need.
type safeMode int

const (
	safePass   safeMode = iota // nothing
	safeLocked                 // the key
	safeShared                 // the key, shared
)

func safeMethods(mode safeMode) Option {
	return func(m *Middleware) error {
		if m.safe != safePass && m.safe != mode {
			return invalid("LockSafeMethods and SharedForSafeMethods exclude one another")
		}
		m.safe = mode
		return nil
	}
}

// Skip lets the requests pass without the key for which f returns true. f must
// be safe for concurrent use.
func Skip(f func(*http.Request) bool) Option {
	return func(m *Middleware) error {
		if f == nil {
			return invalid("Skip(nil)")
		}
		m.skip = f
		return nil
	}
}

// WithMaxBody sets the cap, in bytes, on the body of a request that waits or is
// parked. A longer body is not parked: the answer is 413. It does wait, but a
// client that leaves meanwhile is not noticed. Bodies of requests that run at
// once are not capped. Default 1 MiB; 1 byte to 64 MiB.
//
// A queue has a cap of its own on what it stores, which is the body and a line
// of some hundred bytes.
func WithMaxBody(n int64) Option {
	return func(m *Middleware) error {
		if n < 1 || n > MaxMaxBody {
			return invalid("WithMaxBody(%d): want 1 to %d bytes", n, MaxMaxBody)
		}
		m.maxBody = n
		return nil
	}
}

// WithStatusPath sets where TicketHandler is mounted, such as "/tickets/": a 202
// then links there. It is a path that begins with a slash, or an http or https
// URL; it ends with a slash, and the ticket's id follows. Default: no link.
func WithStatusPath(path string) Option {
	return func(m *Middleware) error {
		u, err := url.Parse(path)
		switch {
		case err != nil, strings.ContainsAny(path, "<>\" "), u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.User != nil,
			!strings.HasSuffix(u.Path, "/"),
			u.Scheme == "" && (u.Host != "" || !strings.HasPrefix(path, "/")),
			u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https", u.Scheme != "" && u.Host == "":
			return invalid("WithStatusPath(%q): want a path or an http URL that ends with a slash", path)
		}
		m.statusPath = path
		return nil
	}
}

// AllowHeaders adds request headers to those that are stored with a parked
// request: Accept, Accept-Language, Content-Encoding, Content-Type,
// Idempotency-Key and Traceparent. Headers that carry credentials, that belong
// to one connection, or that say where the request went are refused. A route that
// parks, and takes its key from a header, needs that header here: its replays
// have no key without it, and end as dead letters.
func AllowHeaders(names ...string) Option {
	return func(m *Middleware) error {
		for _, name := range names {
			if !isToken(name) {
				return invalid("AllowHeaders(%q): not a header's name", name)
			}
			name = textproto.CanonicalMIMEHeaderKey(name)
			if neverStored[name] {
				return invalid("AllowHeaders(%q): this header is never stored", name)
			}
			m.keptHeaders[name] = true
		}
		return nil
	}
}

// WithLogger sets where refusals that are our fault are logged. Default:
// slog.Default.
func WithLogger(log *slog.Logger) Option {
	return func(m *Middleware) error {
		if log == nil {
			return invalid("WithLogger(nil)")
		}
		m.log = log
		return nil
	}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("httplock: %w: %s", core.ErrInvalidOption, fmt.Sprintf(format, args...))
}
