package asynqlock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// keyed gives all types of tasks one guard and one key.
type keyed struct {
	guard *core.Guard
	key   string
}

func (k *keyed) Task(string) (*core.Guard, func([]byte, map[string]string) (string, error), bool) {
	key := k.key
	return k.guard, func([]byte, map[string]string) (string, error) { return key, nil }, true
}

// What Tasks return counts at each task, also where only the key changes.
func TestFromConfig_TheKeyIsThatOfTheMoment(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, "held")
		tasks := &keyed{b.locker.Guard(core.RejectConflicts), "free"}
		handler := asynqlock.FromConfig(tasks)(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
		require.NoError(t, handler.ProcessTask(t.Context(), task()))
		tasks.key = "held"
		require.ErrorIs(t, handler.ProcessTask(t.Context(), task()), core.ErrConflict)
	})
}

func TestFromConfig_AGuardThatCannotWorkIsLoggedOnce(t *testing.T) {
	t.Parallel()
	log := &testbed.Log{}
	handler := asynqlock.FromConfig(&keyed{key: "k"}, asynqlock.WithLogger(log.Logger()))(mustNotRun(t))
	for range 3 {
		require.ErrorIs(t, handler.ProcessTask(t.Context(), task()), core.ErrInvalidOption)
	}
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
	require.Contains(t, log.String(), "the guard is nil")
}
