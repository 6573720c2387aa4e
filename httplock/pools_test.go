package httplock_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// mixed is a handler that does what a request could keep something by: it panics, answers nothing, streams, or has a
// goroutine that outlives it.
func mixed(t *testing.T, late *sync.WaitGroup) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Id")
		check := func() {
			lease, held := core.LeaseFrom(r.Context())
			assert.True(t, held)
			assert.Equal(t, "order:"+id, lease.Key())
		}
		check()
		body := r.Body
		switch id[len(id)-1] {
		case '1':
			panic(id)
		case '2':
			return
		case '3':
			late.Go(func() {
				time.Sleep(time.Millisecond)
				check()
				<-r.Context().Done()
				_, _ = io.ReadAll(body)
			})
		case '4':
			_, _ = io.WriteString(w, id[:1])
			assert.NoError(t, http.NewResponseController(w).Flush())
			_, _ = io.WriteString(w, id[1:])
			return
		}
		sent, err := io.ReadAll(body)
		assert.NoError(t, err)
		assert.Contains(t, []string{"", id}, string(sent))
		_, _ = io.WriteString(w, id)
	}
}

// What is used again for other requests is nobody's then.
func TestPerKey_NothingOfARequestIsAnothers(t *testing.T) {
	guard := testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts)
	var late sync.WaitGroup
	h := mixed(t, &late)
	refused := httplock.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, _ *httplock.Problem) {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "refused "+r.Header.Get("X-Id"))
	})
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", httplock.PerKey(guard, httplock.Param("order:", "id"), refused)(h))
	engine := gin.New()
	engine.POST("/orders/:id", ginlock.PerKey(guard, ginlock.Param("order:", "id"), refused), func(c *gin.Context) { h(c.Writer, c.Request) })
	e := echo.New()
	e.POST("/orders/:id", func(c echo.Context) error { h(c.Response(), c.Request()); return nil }, echolock.PerKey(guard, echolock.Param("order:", "id"), refused))
	for name, handler := range map[string]http.Handler{"net/http": mux, "gin": engine, "echo": e} {
		var clients sync.WaitGroup
		for client := range 8 {
			clients.Go(func() {
				for i := range 50 {
					id := fmt.Sprintf("%d-%d", client/2, i) // two clients have the same keys
					body := ""
					if i%3 == 0 {
						body = id
					}
					r := testbed.Request(t, http.MethodPost, "/orders/"+id, body)
					r.Header.Set("X-Id", id)
					if body == "" {
						r.Body = http.NoBody
					}
					var got testbed.Answer
					panicked := func() (value any) {
						defer func() { value = recover() }()
						got = testbed.Do(handler, r)
						return nil
					}()
					switch last := id[len(id)-1]; {
					case panicked != nil:
						assert.Equal(t, id, panicked, name)
					case got.Status == http.StatusConflict:
						assert.Equal(t, "refused "+id, got.Body, name)
					case last == '2':
						assert.Empty(t, strings.TrimSpace(got.Body), name)
					default:
						assert.Equal(t, id, got.Body, name)
					}
				}
			})
		}
		clients.Wait()
	}
	late.Wait()
}
