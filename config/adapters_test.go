package config_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

const chargesFile = `
guards:
  wallet: {key: "wallet:{json.user_id}", on_conflict: %s}
routes:
  POST /charges: wallet
asynq:
  wallet:charge: wallet
`

// A file that is refused for one line changes neither the guards of requests nor those of tasks.
func TestReload_IsAllOrNothing(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	waits, rejects := fmt.Sprintf(chargesFile, "{policy: retry, max_wait: 10s}"), fmt.Sprintf(chargesFile, "reject")
	rt := build(t, env, rejects)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", func(http.ResponseWriter, *http.Request) {})
	service := httplock.FromConfig(rt)(mux)
	charge := func() int { return testbed.Call(t, service, http.MethodPost, "/charges", `{"user_id":1}`).Status }
	require.NoError(t, rt.CheckRoutes([]httplock.RegisteredRoute{{Method: "POST", Pattern: "/charges", FromConfig: true}}))
	release := hold(t, rt, "wallet:1")
	handler := asynqlock.FromConfig(rt, asynqlock.WithLogger(slog.New(slog.DiscardHandler)))(
		asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	process := func() error {
		return handler.ProcessTask(t.Context(), asynq.NewTask("wallet:charge", []byte(`{"user_id":1}`)))
	}
	rejected := func() {
		t.Helper()
		assert.Equal(t, http.StatusConflict, charge())
		assert.ErrorIs(t, process(), asynqlock.ErrDeferred)
	}
	rejected()
	in := rt.File()
	for what, line := range map[string]string{
		"a queue that is new":             "queues: {more: {}}",
		"a service":                       "service: shop",
		"an unknown field":                "guards2: {}",
		"a principal that nobody gave":    "defaults: {principal: users}",
		"a route that nobody registered":  "",
		"a key of tasks that is for HTTP": "",
	} {
		file := waits + line + "\n"
		switch what {
		case "a route that nobody registered":
			file = strings.Replace(file, "asynq:", "  POST /refunds: wallet\nasynq:", 1)
		case "a key of tasks that is for HTTP":
			file += "  other: {key: '{route}'}\n"
		}
		f, err := config.ParseIn("perkey.yaml", []byte("redis: {addresses: ['"+env.Addr+"']}\nprefix: "+env.Prefix+"\n"+file), environment)
		if err == nil {
			err = rt.Reload(f)
		}
		require.Error(t, err, what)
		assert.Same(t, in, rt.File())
		rejected()
	}
	require.NoError(t, rt.Reload(load(t, env, waits)))
	answered, processed := make(chan int, 1), make(chan error, 1)
	go func() { answered <- charge() }()
	go func() { processed <- process() }()
	redistest.Eventually(t, func() bool { return waiting(t, rt, "wallet:1") }, "what waits now")
	time.Sleep(20 * time.Millisecond) // so does the other, if it does
	release()
	assert.Equal(t, http.StatusOK, <-answered)
	assert.NoError(t, <-processed)
}
