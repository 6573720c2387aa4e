package core_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/mutant"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// shared counts the calls of several callers, by script.
type shared struct{ acquires, releases atomic.Int64 }

func (s *shared) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s *shared) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (s *shared) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if isScript(cmd, "acquires") {
				s.acquires.Add(1)
			} else if isScript(cmd, "releases") {
				s.releases.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}

// Of callers who ask at once, each is told of its own key: that it has it, that somebody else has, and for how long, that it is no lock.
func TestTogether_EachCallerHasItsOwn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb, sent := t.Context(), env.Client(t), &shared{}
		other, mine := newLocker(t, env), hooked(t, env, sent)
		const keys = 200
		for i := range keys {
			key := fmt.Sprint("k", i)
			switch i % 5 {
			case 0:
				_ = testbed.Take(t, other, key) // thin
			case 1:
				_ = testbed.Take(t, other, key)
				inflate(t, rdb, core.RecordName(env.Prefix, key))
			case 2:
				require.NoError(t, rdb.RPush(ctx, core.RecordName(env.Prefix, key), "x").Err())
			}
		}
		for sent.acquires.Load() == 0 || sent.releases.Load() == 0 {
			var all sync.WaitGroup
			for i := range keys {
				all.Go(func() {
					key := fmt.Sprint("k", i)
					lease, err := mine.TryAcquire(ctx, key)
					var conflict *core.ConflictError
					switch {
					case i%5 > 2:
						if assert.NoError(t, err, key) {
							assert.Equal(t, key, lease.Key())
							assert.NoError(t, lease.Release(ctx), key)
						}
					case i%5 == 2:
						assert.ErrorContains(t, err, "WRONGTYPE", key)
					default:
						assert.ErrorAs(t, err, &conflict, key)
					}
				})
			}
			all.Wait()
		}
		require.Len(t, redistest.Keys(t, rdb, env.Prefix), keys*3/5, "nothing is left of the others")
	})
}

func TestTogether_MutantsAreCaught(t *testing.T) {
	const file = "internal/store/together.go"
	mutant.Catch(t, []mutant.Mutant{
		{Name: "all are told what the first is", File: file, Old: "c.call.SetVal(replies[i])", New: "c.call.SetVal(replies[map[bool]int{false: i}[%s]])"},
		{Name: "who has to ask alone does not", File: file, Old: "alone = append(alone, c)", New: "if !%s {\n\t\t\t\talone = append(alone, c)\n\t\t\t}"},
		{Name: "all are sent what the first says", File: file, Old: "args = c.plainArgs(args)", New: "args = map[bool]*command{false: c, true: t.commands[0]}[%s].plainArgs(args)"},
	}, "^TestTogether_Each")
}
