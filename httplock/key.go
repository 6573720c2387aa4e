package httplock

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/internal/keytext"
)

// KeyFunc returns the key of a request. After an error the request does not run: one that wraps
// BadKey's or core.ErrInvalidKey is the client's fault and answered with 400; any other is answered
// with 500 and logged. Only the error [NoKey] lets the request run, without a key.
//
// Under every framework the request has the path parameters of the matched route as its PathValue, and the route as its
// Pattern. A KeyFunc may read the body if it leaves another in the request that reads the same: the handler gets that
// one. It must be safe for concurrent use.
//
// Param, ParamInt, ParamUUID, Query, Header, JSONField, Form and Value make the usual ones, Join, Hash and
// Canonical combine them. Values that the service treats as the same thing must make the same key, or two
// requests for it run at once: locktest.RequireOneAtATime tests this.
//
// For a replay it must return what it returned when the request was parked. On a route
// that parks, a header that it reads must be given to WithAllowedHeaders, unless it is
// stored anyway; credentials and the client's address are never there.
type KeyFunc func(*http.Request) (string, error)

// Param takes the key from a path parameter: Param("order:", "id") makes "order:42" of /orders/42 under /orders/{id}.
// The prefix keeps keys of different kinds apart. A request with an empty value is refused with 400. A name that is
// empty, or that the route does not have, is a mistake in the program: 500, and the log says what to do.
//
// The value is the one that the framework gives to its handlers: that of a wildcard for the rest of the path begins
// with a slash under gin, and not elsewhere. Percent-encoding that a router leaves in it, as chi and echo may, is
// decoded, for every key function: /orders/42 and /orders/%34%32 are one order. Where it cannot be known whether it was
// left in, since the path was changed or the router does not report its pattern, a value with a % is refused with 400.
// Values that a handler treats as the same thing must make the same key: if 42 and 042 are one order to it, use
// [ParamInt].
func Param(prefix, name string) KeyFunc { return canonicalParam(prefix, name, nil) }

// ParamInt is Param for a path parameter that is a whole number, in decimal digits with a
// sign or without. All spellings of a number make one key: 42, 042 and +42 are
// "order:42", as for a handler that uses strconv.Atoi. Anything else is refused with 400.
func ParamInt(prefix, name string) KeyFunc { return canonicalParam(prefix, name, keytext.Int) }

// ParamUUID is Param for a path parameter that is a UUID. It makes one key, in lower case and with hyphens, of the forms
// that the usual parsers take: in any case, without hyphens, in braces, behind urn:uuid:. Anything else is refused
// with 400.
func ParamUUID(prefix, name string) KeyFunc { return canonicalParam(prefix, name, keytext.UUID) }

func canonicalParam(prefix, name string, write func(string) (string, error)) KeyFunc {
	if name == "" {
		return failing(errNoName("path parameter"))
	}
	return (&param{prefix, name, write}).key
}

// param is a path parameter as a key. It keeps nothing of a request; see isParam.
type param struct {
	prefix, name string
	write        func(string) (string, error) // nil: as it is
}

func (p *param) key(r *http.Request) (string, error) {
	v := pathValue(r, p.name)
	switch {
	case v == "":
		return "", cmp.Or(missingFromRoute(r, p.name), missing("path parameter", p.name))
	case r.Pattern == "" && strings.Contains(v, "%"): // of a router that does not tell its pattern
		return "", BadKey(errAmbiguousPath)
	}
	if p.write != nil {
		written, err := p.write(v)
		if err != nil {
			return "", BadKey(fmt.Errorf("path parameter %q: %w", p.name, err))
		}
		v = written
	}
	return p.prefix + v, nil
}

// Query takes the key from the first value of a query parameter, as Param does from the path. A request without a value
// is refused with 400. The query is stored with a parked request.
func Query(prefix, name string) KeyFunc {
	return from(prefix, "query parameter", name, func(r *http.Request) (string, error) {
		return r.URL.Query().Get(name), nil
	})
}

// Header takes the key from the first value of a request header, as Param does from
// the path. A request without a value is refused with 400.
//
// A route that parks must give the same header to WithAllowedHeaders, unless it is stored
// anyway. A replay does not have it otherwise, is handed back, and expires.
//
// A header that carries credentials, such as Authorization, Cookie or X-Api-Key, cannot be a key, since keys can be
// read in Redis: every request is refused with 500, and the log says why. Use the id of whom they authenticate, with
// Value. Host cannot be a key either: Go does not treat it as a header, and it is not stored.
func Header(prefix, name string) KeyFunc {
	if err := keyHeader(name); err != nil {
		return failing(err)
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	return from(prefix, "header", name, func(r *http.Request) (string, error) { return r.Header.Get(name), nil })
}

// Value takes the key from the request's context, where middleware in front of the guard left it: Value("user:", "user
// id", userID). What says what the value is, for the log. A request for which f finds none, or an empty one, is refused
// with 400. Middleware in front should have refused it already.
//
// Under gin, f finds what is in c.Request.Context(); for values of c.Set use ginlock.Func. The same holds for echo. A
// replay carries no credentials. On a route that parks, the middleware that sets the value must find it for a replay
// too: Replayed has the principal's id.
func Value(prefix, what string, f func(context.Context) (string, bool)) KeyFunc {
	if f == nil {
		return failing(invalid("Value: the function is nil"))
	}
	return from(prefix, "value", what, func(r *http.Request) (string, error) {
		v, has := f(r.Context())
		if !has {
			v = ""
		}
		return v, nil
	})
}

// from is the KeyFunc of one named value. An empty value is the client's fault.
func from(prefix, kind, name string, value KeyFunc) KeyFunc {
	if name == "" {
		return failing(errNoName(kind))
	}
	return func(r *http.Request) (string, error) {
		v, err := value(r)
		if err != nil {
			return "", err
		}
		if v == "" {
			return "", missing(kind, name)
		}
		return prefix + v, nil
	}
}

func errNoName(kind string) error { return invalid("the name of the %s is empty", kind) }

// missing is the client's fault: a request has no such value.
func missing(kind, name string) error {
	return BadKey(fmt.Errorf("%s %q is missing or empty", kind, name))
}

// failing is a KeyFunc that was made by mistake: no request runs.
func failing(err error) KeyFunc {
	return func(*http.Request) (string, error) { return "", err }
}

// incomplete is the KeyFunc where there should be one.
func incomplete(*http.Request) (string, error) { return "", invalid("the key function is nil") }

// missingFromRoute returns an error if the matched route has no such path parameter.
func missingFromRoute(r *http.Request, name string) error {
	if r.Pattern == "" {
		return invalid("no path parameter %q: the request was not matched by a route: put the guard around what is registered with "+
			"a pattern, not around the router", name)
	}
	names := PatternParams(r.Pattern)
	switch {
	case slices.Contains(names, name):
		return nil
	case len(names) == 0:
		return invalid("the route %s has no path parameter %q, nor any other", r.Pattern, name)
	}
	return invalid("the route %s has no path parameter %q: it has %s", r.Pattern, name, strings.Join(names, ", "))
}

// keyHeader checks that a key can be taken from a header.
func keyHeader(name string) error {
	switch canonical := textproto.CanonicalMIMEHeaderKey(name); {
	case name == "":
		return invalid("the name of the header is empty")
	case !isToken(name):
		return invalid("%q is not a header's name", name)
	case credentialHeaders[canonical]:
		return invalid("the header %s carries credentials, and a key can be read in Redis: use the id of the user that they stand for", canonical)
	case canonical == "Host":
		return invalid("the header Host cannot be a key: use a KeyFunc that reads r.Host, on a route that does not park")
	}
	return nil
}
