package ginlock

import (
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
)

// PerKey returns middleware that runs one request at a time per key.
//
// A mistake in its arguments is logged once, and every request is then refused
// with 500. New reports it instead.
func PerKey(guard *core.Guard, key KeyFunc, opts ...httplock.Option) gin.HandlerFunc {
	h, err := New(guard, key, opts...)
	if err != nil {
		return handler(httplock.FailClosed(err), key)
	}
	return h
}

// New is PerKey for those who check: its error wraps core.ErrInvalidOption.
func New(guard *core.Guard, key KeyFunc, opts ...httplock.Option) (gin.HandlerFunc, error) {
	m, err := httplock.New(guard, opts...)
	if err == nil && key == nil {
		err = fmt.Errorf("ginlock: %w: the key function is nil", core.ErrInvalidOption)
	}
	if err != nil {
		return nil, err
	}
	return handler(m, key), nil
}

func handler(m *httplock.Middleware, key KeyFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		if c.FullPath() == "" {
			return
		}
		ran := m.Serve(httplock.Exchange{
			Writer:  c.Writer,
			Request: c.Request,
			Name:    c.Request.Method + " " + c.FullPath(),
			Key:     func() (string, error) { return keyOf(c, key) },
			Next: func(r *http.Request) {
				outer := c.Request
				defer func() { c.Request = outer }()
				c.Request = r
				c.Next()
			},
			Written: c.Writer.Written,
		})
		if !ran {
			c.Abort()
		}
	}
}

// SharedForSafeMethods is httplock's option of that name: GET, HEAD and OPTIONS take
// the key together with one another.
func SharedForSafeMethods() httplock.Option { return httplock.SharedForSafeMethods() }
