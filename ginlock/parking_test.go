package ginlock_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestParking_LostReplyOfTheQueueIsNotTakenForARefusal(t *testing.T) {
	env := redistest.Real(t)
	b := testbed.New(t, env)
	b.Hold(t)
	proxy := redistest.NewProxy(t, env.Addr)
	proxied := &redistest.Env{Addr: proxy.Addr, Prefix: env.Prefix}
	queue := testbed.NewQueue(t, proxied.Client(t), "ship", delayqueue.WithPrefix(env.Prefix))
	proxy.LoseReply(func([]byte) bool { return true })
	engine := gin.New()
	engine.POST("/orders/:id", ginlock.PerKey(b.Locker.Guard(delayqueue.Policy(queue)), orderKey, httplock.WithAnonymous()), mustNotRun(t))
	resp := testbed.Call(t, engine, http.MethodPost, testbed.OrderPath, "")
	content := resp.Body
	require.Equal(t, http.StatusServiceUnavailable, resp.Status)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Contains(t, content, "could not be confirmed that the request was queued")
}

func TestWithPrincipal_IsForGin(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	guard := b.Locker.Guard(new(testbed.Parking))
	ann := ginlock.WithPrincipal(func(*gin.Context) (string, error) { return "ann", nil })
	still := httplock.WithReauthorize(func(*http.Request, string) error { return nil })
	h := httplock.PerKey(guard, func(*http.Request) (string, error) { return testbed.OrderKey, nil }, ann, still)(http.NotFoundHandler())
	testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, ""), http.StatusInternalServerError, "internal", false)
	_, err := ginlock.New(guard, orderKey, ginlock.WithPrincipal(nil))
	require.ErrorIs(t, err, core.ErrInvalidOption)
}

// What the function leaves in the place of the body of c.Request is the handlers'.
func TestWithPrincipal_MayPutTheBodyBack(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	r := gin.New()
	r.POST("/orders/:id", ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, ginlock.WithPrincipal(func(c *gin.Context) (string, error) {
		content, err := io.ReadAll(c.Request.Body)
		c.Request.Body = io.NopCloser(bytes.NewReader(content))
		return "ann", err
	})), func(c *gin.Context) {
		content, err := io.ReadAll(c.Request.Body)
		assert.NoError(t, err)
		assert.Equal(t, 2<<20, len(content)) //nolint:testifylint // Len prints it
	})
	require.Equal(t, http.StatusOK, testbed.Call(t, r, http.MethodPost, testbed.OrderPath, strings.Repeat("x", 2<<20)).Status)
}
