package console_test

import (
	"net/http"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops/console"
)

// Each page is read with the rights that docs/operations.md prints.
func TestConsole_SmallestRights(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	redistest.AddUser(t, admin, "console", redistest.Rights(t, "locks", "locks of parked work, Inspect", "List", "queues", "Idempotency-Keys",
		"ops.Audit", "ops.ReadFleet", "a console"))
	holder := newLocker(t, admin, "perkey")
	testbed.Take(t, holder, "k", core.Shared())
	q := testbed.NewQueue(t, admin, "q")
	testbed.Enqueue(t, q, delayqueue.Job{ID: "m", Key: "k"})
	env := &redistest.Env{Addr: admin.Options().Addr, Prefix: "perkey"}
	server, _ := newConsole(t, env, func(o *console.Options) {
		rdb := redistest.Client(t, &redis.Options{Addr: env.Addr, Username: "console", Password: redistest.Password})
		o.Locker, o.Redis = newLocker(t, rdb, "perkey"), rdb
	})
	for _, page := range append(pages, "keys?prefix=k", "queue?queue=q", "message?queue=q&id=m", "idempotency?route=a&idempotency-key=b") {
		code, body, _ := get(t, server.URL+"/"+page)
		assert.Equal(t, http.StatusOK, code, page)
		assert.NotContains(t, body, "Not up to date", page)
	}
	assert.Empty(t, redistest.Denied(t, admin))
	redistest.RequireUsed(t, admin, redistest.Rights(t, "a console"), nil)
}
