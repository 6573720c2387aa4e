package echolock

import (
	"github.com/labstack/echo/v4"

	"github.com/perkey-go/perkey/httplock"
)

// KeyFunc is httplock.KeyFunc: a key function for net/http works for echo, since the request that
// it gets has echo's path parameters as its PathValue and c.Path() as its Pattern. Func makes a
// KeyFunc from a function of echo's context; Value, Join, Hash and Canonical are only in httplock.
type KeyFunc = httplock.KeyFunc

// NoKey is httplock.NoKey: a key function's error for a request that needs no key.
var NoKey = httplock.NoKey //nolint:errname // as httplock's

// Param is httplock.Param: the key is prefix and the value of a path parameter. That of
// the rest of a path, /files/*rest, is echo's "*", and also "rest". Where c.Param is
// percent-encoded, since the client sent the path in an unusual form, the key is decoded.
func Param(prefix, name string) KeyFunc { return httplock.Param(prefix, name) }

// ParamInt is httplock.ParamInt: 42, 042 and +42 make one key.
func ParamInt(prefix, name string) KeyFunc { return httplock.ParamInt(prefix, name) }

// ParamUUID is httplock.ParamUUID: all spellings of a UUID make one key.
func ParamUUID(prefix, name string) KeyFunc { return httplock.ParamUUID(prefix, name) }

// Query is httplock.Query: the key is prefix and the first value of a query parameter.
func Query(prefix, name string) KeyFunc { return httplock.Query(prefix, name) }

// Header is httplock.Header: the key is prefix and the first value of a header. A
// route that parks needs httplock.WithAllowedHeaders too.
func Header(prefix, name string) KeyFunc { return httplock.Header(prefix, name) }

// JSONField is httplock.JSONField: the key is prefix and a field of the JSON body.
func JSONField(prefix, path string) KeyFunc { return httplock.JSONField(prefix, path) }

// Form is httplock.Form: the key is prefix and a field of the form in the body.
func Form(prefix, name string) KeyFunc { return httplock.Form(prefix, name) }

// Func takes the key from f, which may use whatever earlier middleware left in c, and
// must be safe for concurrent use. While it runs, c.Request() is a copy: the handler sees
// what f reads of the body, and what it puts in the body's place, but no other change to
// the request.
//
// On a route that parks, f must return the same for a replay: give the headers that it reads to
// httplock.WithAllowedHeaders, and do not let it depend on credentials, on the client's address, or
// on what earlier middleware derived from these.
func Func(f func(c echo.Context) (string, error)) KeyFunc { return version.Func(f) }
