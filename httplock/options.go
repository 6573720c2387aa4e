package httplock

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/perkey-go/perkey/core"
)

// Option configures a Middleware.
type Option func(*Middleware) error

// WithLockedSafeMethods makes GET, HEAD and the other safe methods need the key too, as POST does. OPTIONS never
// does: browsers send it before a request, to ask what the route allows.
func WithLockedSafeMethods() Option { return safeMethods(safeLocked) }

// WithSharedSafeMethods makes GET, HEAD and the other safe methods share the key: they run at the same time as one another,
// and not while another method runs. A GET that arrives after a waiting POST waits until that has
// run. OPTIONS passes.
func WithSharedSafeMethods() Option { return safeMethods(safeShared) }

// safeMode says what safe methods need.
type safeMode int

const (
	safePass   safeMode = iota // nothing
	safeLocked                 // the key
	safeShared                 // the key, shared
)

func safeMethods(mode safeMode) Option {
	return func(m *Middleware) error {
		if m.safe != safePass && m.safe != mode {
			return invalid("WithLockedSafeMethods and WithSharedSafeMethods exclude one another")
		}
		m.safe = mode
		return nil
	}
}

// WithSkip lets the requests pass without the key for which f returns true. f must be safe for concurrent use.
func WithSkip(f func(*http.Request) bool) Option {
	return func(m *Middleware) error {
		if f == nil {
			return invalid("WithSkip(nil)")
		}
		m.skip = f
		return nil
	}
}

// WithStatusPath sets where TicketHandler is mounted, such as "/tickets/": a 202 then links there. It is a path that
// begins with a slash, or an http or https URL; it ends with a slash, and the ticket's id follows. Default: no link.
func WithStatusPath(path string) Option {
	return func(m *Middleware) error {
		u, err := url.Parse(path)
		switch {
		case err != nil, strings.ContainsAny(path, "<>\" "), u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.User != nil,
			!strings.HasSuffix(u.Path, "/"),
			u.Scheme == "" && (u.Host != "" || !strings.HasPrefix(path, "/")),
			u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https", u.Scheme != "" && u.Host == "":
			return invalid("WithStatusPath(%q): want a path that begins and ends with a slash, or an http URL that ends with one", path)
		}
		m.statusPath = path
		return nil
	}
}

// WithReplayHost sets the Host that replays of the route's parked requests have, such as
// "shop.example": for routers that choose a route by the host. The client's own is never stored.
// Default: the host in the pattern of the http.ServeMux right around the guard, if it has one.
func WithReplayHost(host string) Option {
	return func(m *Middleware) error {
		if !isHost(host) {
			return invalid("WithReplayHost(%q): want a host, such as shop.example", host)
		}
		m.replayHost = host
		return nil
	}
}

// WithAllowedHeaders adds request headers to those that are stored with a parked request: Accept, Accept-Language,
// Content-Encoding, Content-Type, Idempotency-Key, Traceparent, and If-Match, If-None-Match, If-Modified-Since and
// If-Unmodified-Since, whose 412 is then the result. Headers that carry credentials (see WithCredentialHeaders), that
// belong to one connection, or that say where the request went are refused. One that is allowed is stored even if the
// request's Connection names it: else a client could have its replay run without it. A route that parks and takes its
// key from a header needs that header here: without it its replays have no key, are handed back, and expire.
func WithAllowedHeaders(names ...string) Option {
	return func(m *Middleware) error { return addHeaders(m.keptHeaders, neverStored, "WithAllowedHeaders", names) }
}

// WithLogger sets where refusals that are the service's fault are logged. Default: slog.Default.
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
