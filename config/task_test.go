package config_test

import (
	"context"
	"errors"
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
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

const taskFile = `
guards:
  wallet: {key: "wallet:{json.user.id}"}
asynq:
  wallet:charge: wallet
  wallet:*: {key: "{type}|{header.Tenant}|{json.user.id|sha256}", at_once: 2}
  "*": {key: "other:{type}"}
routes:
  POST /charges: wallet
`

var errRan = errors.New("the handler ran")

// Tasks have the keys that the file says, those of requests among them, and a reload reaches them.
func TestTasks_AreGuardedAsTheFileSays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rt := build(t, env, taskFile)
		handler := asynqlock.FromConfig(rt)(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errRan }))
		run := func(taskType, payload string, headers map[string]string) error {
			return handler.ProcessTask(t.Context(), asynq.NewTaskWithHeaders(taskType, []byte(payload), headers))
		}
		held := func(key string, check func()) {
			t.Helper()
			require.NoError(t, rt.Locker().Do(t.Context(), key, func(context.Context) error { check(); return nil }))
		}
		tenant := map[string]string{"Tenant": "7"}
		const user = `{"user":{"id":42}}`
		held("wallet:42", func() {
			assert.ErrorIs(t, run("wallet:charge", user, nil), core.ErrConflict)
			assert.Equal(t, errRan, run("wallet:charge", `{"user":{"id":43}}`, nil))
			assert.Equal(t, errRan, run("wallet:pay", user, tenant))
		})
		const hash = "73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049"
		held("wallet:pay|7|"+hash, func() { // two may hold it, but not beside one that holds it alone
			assert.ErrorIs(t, run("wallet:pay", user, tenant), core.ErrConflict)
		})
		held("other:mail", func() { assert.ErrorIs(t, run("mail", "", nil), core.ErrConflict) })
		for _, err := range []error{run("wallet:charge", `{}`, nil), run("wallet:charge", `nonsense`, nil), run("wallet:pay", user, nil)} {
			assert.ErrorIs(t, err, asynq.SkipRetry, "no usable key")
		}

		require.NoError(t, rt.Reload(load(t, env, "asynq:\n  mail: {key: \"mail:{json.to}\"}\nunguard: [wallet:charge, 'wallet:*', '*', POST /charges]\n")))
		held("mail:a", func() {
			assert.ErrorIs(t, run("mail", `{"to":"a"}`, nil), core.ErrConflict)
			assert.Equal(t, errRan, run("mail", `{"to":"b"}`, nil))
			assert.Equal(t, errRan, run("wallet:charge", `nonsense`, nil), "it needs no key any more")
		})
	})
}

func TestFromConfig_AMistakePanics(t *testing.T) {
	for _, from := range []func(){
		func() { asynqlock.FromConfig(nil) },
		func() { asynqlock.FromConfig((*config.Runtime)(nil)) },
		func() { asynqlock.FromConfig(&config.Runtime{}, nil) },
	} {
		require.Panics(t, from)
	}
}

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
		asynq.HandlerFunc(noTask))
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
	for _, refused := range []string{
		waits + "queues: {more: {}}\n", waits + "defaults: {principal: users}\n",
		strings.Replace(waits, "asynq:", "  POST /refunds: wallet\nasynq:", 1), // which nobody registered
	} {
		require.ErrorIs(t, rt.Reload(load(t, env, refused)), core.ErrInvalidOption, refused)
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
