package ginlock

import (
	"fmt"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
)

// KeyFunc returns the key of a request. An error that wraps httplock.BadKey's or
// core.ErrInvalidKey is the client's fault: the answer is 400. Any other error is
// ours: 500. The request does not run either way.
type KeyFunc func(c *gin.Context) (string, error)

// Param takes the key from a path parameter: Param("order:", "id") makes
// "order:42" of /orders/42 under /orders/:id. The prefix keeps keys of different
// kinds apart. A request with an empty value is refused with 400. A name that the
// route does not have, or that is empty, is a mistake of ours: 500, and the log
// says why.
func Param(prefix, name string) KeyFunc {
	return join(prefix, "path parameter", name, func(c *gin.Context) (string, error) {
		v, has := c.Params.Get(name)
		if !has {
			return "", fmt.Errorf("ginlock: %w: the route %s has no path parameter %q", core.ErrInvalidOption, c.FullPath(), name)
		}
		return v, nil
	})
}

// Header takes the key from the first value of a request header. The prefix is
// as for Param. A request without a value is refused with 400, and an empty name
// is a mistake of ours: 500.
//
// A route that parks must give the same header to httplock.AllowHeaders, unless
// it is stored anyway. A replay does not have it otherwise, and ends as a dead
// letter. Headers that are never stored, such as Authorization, cannot make the
// key of such a route.
func Header(prefix, name string) KeyFunc {
	return join(prefix, "header", name, func(c *gin.Context) (string, error) { return c.GetHeader(name), nil })
}

// Query takes the key from the first value of a query parameter, as Header does
// from a header. The query is always stored.
func Query(prefix, name string) KeyFunc {
	return join(prefix, "query parameter", name, func(c *gin.Context) (string, error) { return c.Query(name), nil })
}

// Func takes the key from f, which may use whatever earlier middleware left in c.
//
// On a route that parks, f must find the same for a replay: give the headers that
// it reads to httplock.AllowHeaders, and do not let it depend on credentials or
// on the client's address. What earlier middleware took from those is missing.
func Func(f func(c *gin.Context) (string, error)) KeyFunc { return f }

func join(prefix, kind, name string, value func(*gin.Context) (string, error)) KeyFunc {
	return func(c *gin.Context) (string, error) {
		if name == "" {
			return "", fmt.Errorf("ginlock: %w: the name of the %s is empty", core.ErrInvalidOption, kind)
		}
		v, err := value(c)
		if err != nil {
			return "", err
		}
		if v == "" {
			return "", httplock.BadKey(fmt.Errorf("%s %q is missing or empty", kind, name))
		}
		return prefix + v, nil
	}
}
