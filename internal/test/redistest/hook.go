package redistest

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// BeforeEach is a hook that calls the function before each command of a client, also of
// those that are sent together. The function may change the command.
type BeforeEach func(cmd redis.Cmder)

// DialHook implements redis.Hook.
func (f BeforeEach) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (f BeforeEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (f BeforeEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			f(cmd)
		}
		return next(ctx, cmds)
	}
}

// IsScript reports whether the command runs a script.
func IsScript(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") }

// BreakScript returns a hook that has a client run a broken script in place of a script,
// and how often it did. Of the scripts, by their names, it breaks the one that is named,
// or all that have the piece old if name is empty. Old stands in each of them once.
func BreakScript(t testing.TB, scripts map[string]string, name, old, broken string) (redis.Hook, *atomic.Int64) {
	t.Helper()
	instead := map[string]string{}
	for its, source := range scripts {
		if its != name && (name != "" || !strings.Contains(source, old)) {
			continue
		}
		require.Equal(t, 1, strings.Count(source, old), "%s.lua has once: %s", its, old)
		instead[source] = strings.Replace(source, old, broken, 1)
	}
	require.NotEmpty(t, instead, "a script has: %s", old)
	return RunInstead(instead)
}

// RunInstead returns a hook that has a client run others in place of scripts, both given by their
// sources, and how often it did.
func RunInstead(instead map[string]string) (redis.Hook, *atomic.Int64) {
	by := map[any]string{} // sources by sources, hashes by hashes
	for source, other := range instead {
		by[source], by[redis.NewScript(source).Hash()] = other, redis.NewScript(other).Hash()
	}
	used := &atomic.Int64{}
	return BeforeEach(func(cmd redis.Cmder) {
		if !IsScript(cmd) {
			return
		}
		args := cmd.Args() // the command's own
		if other, ok := by[args[1]]; ok {
			args[1] = other
			used.Add(1)
		}
	}), used
}

// Args are a command's arguments as they are now. Where one is a pointer, which saves the caller an allocation, it is what that
// points to.
func Args(cmd redis.Cmder) []any {
	args := slices.Clone(cmd.Args())
	for i, arg := range args {
		switch arg := arg.(type) {
		case *string:
			args[i] = *arg
		case *int64:
			args[i] = *arg
		}
	}
	return args
}
