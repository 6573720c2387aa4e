package ginlock_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	gin.DefaultErrorWriter = io.Discard // stacks of panics that are meant
	redistest.Main(m)
}

var orderKey = ginlock.Param("order:", "id")

// guarded serves handlers at POST and GET /orders/:id, behind PerKey.
func guarded(guard *core.Guard, handlers ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	chain := append([]gin.HandlerFunc{ginlock.PerKey(guard, orderKey)}, handlers...)
	r.POST("/orders/:id", chain...)
	r.GET("/orders/:id", chain...)
	return r
}

func ok(c *gin.Context) { c.String(http.StatusOK, "ok") }

func mustNotRun(t *testing.T) gin.HandlerFunc {
	t.Helper()
	return func(*gin.Context) { t.Error("the handler ran") }
}
