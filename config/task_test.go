package config_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
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
