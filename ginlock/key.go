package ginlock

import (
	"fmt"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/httplock"
)

// KeyFunc returns the key of a request. An error that wraps httplock.BadKey's or
// core.ErrInvalidKey is the client's fault: the answer is 400. Any other error is
// ours: 500. The request does not run either way.
type KeyFunc func(c *gin.Context) (string, error)

// Param takes the key from a path parameter: Param("order:", "id") makes
// "order:42" of /orders/42 under /orders/:id. The prefix keeps keys of different
// kinds apart. A request without a value is refused with 400.
func Param(prefix, name string) KeyFunc {
	return join(prefix, "path parameter", name, func(c *gin.Context) string { return c.Param(name) })
}

// Header takes the key from the first value of a request header, as Param does
// from the path.
func Header(prefix, name string) KeyFunc {
	return join(prefix, "header", name, func(c *gin.Context) string { return c.GetHeader(name) })
}

// Query takes the key from the first value of a query parameter, as Param does
// from the path.
func Query(prefix, name string) KeyFunc {
	return join(prefix, "query parameter", name, func(c *gin.Context) string { return c.Query(name) })
}

// Func takes the key from f, which may use whatever earlier middleware left in c.
func Func(f func(c *gin.Context) (string, error)) KeyFunc { return f }

func join(prefix, kind, name string, value func(*gin.Context) string) KeyFunc {
	return func(c *gin.Context) (string, error) {
		v := value(c)
		if v == "" {
			return "", httplock.BadKey(fmt.Errorf("%s %q is missing or empty", kind, name))
		}
		return prefix + v, nil
	}
}
