package core_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// withoutExpiry are ways in which others take the expiry from a record.
var withoutExpiry = map[string]func(t *testing.T, rdb *redis.Client, record string){
	"PERSIST": func(t *testing.T, rdb *redis.Client, record string) {
		require.NoError(t, rdb.Persist(t.Context(), record).Err())
	},
	"RESTORE": func(t *testing.T, rdb *redis.Client, record string) {
		dump, err := rdb.Dump(t.Context(), record).Result()
		require.NoError(t, err)
		require.NoError(t, rdb.RestoreReplace(t.Context(), record, 0, dump).Err())
	},
}

// Many callers ask for a key whose record has lost its expiry. None gets it, and its holder's next renewal heals it.
func TestPersisted_TheKeyStaysHeldAndARenewalHealsIt(t *testing.T) {
	t.Parallel()
	for way, strip := range withoutExpiry {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			env := redistest.Real(t)
			rdb := env.Client(t)
			holder, others := lockerOn(t, rdb, env.Prefix, core.WithTTL(6*time.Second)), lockerOn(t, env.Client(t), env.Prefix)
			record := core.RecordName(env.Prefix, "k")
			lease := testbed.Take(t, holder, "k")
			strip(t, rdb, record)
			for range 3 {
				var callers sync.WaitGroup
				errs := make([]error, 12)
				for i := range errs {
					callers.Go(func() {
						opts := [][]core.AcquireOption{nil, {core.Shared()}, {core.Counted(5)}}[i%3]
						if i < 6 {
							_, errs[i] = others.TryAcquire(t.Context(), "k", opts...)
						} else {
							_, errs[i] = others.TryAcquireAll(t.Context(), []string{"k", "free"}, opts...)
						}
					})
				}
				callers.Wait()
				for _, err := range errs {
					require.ErrorIs(t, err, core.ErrConflict)
				}
			}
			waited := make(chan error, 1)
			go func() {
				next, err := others.Acquire(t.Context(), "k")
				waited <- errors.Join(err, next.Release(t.Context()))
			}()
			redistest.Eventually(t, func() bool { return rdb.PTTL(t.Context(), record).Val() > 0 }, "the record has an expiry again")
			require.NoError(t, lease.Context().Err())
			require.NoError(t, lease.Release(t.Context()))
			require.NoError(t, <-waited)
		})
	}
}

// persistedDetached takes the expiry from a key that a process which died holds, and says what is wrong then.
func persistedDetached(t *testing.T, strip func(*testing.T, *redis.Client, string), hooks ...redis.Hook) (wrong string) {
	t.Helper()
	env := redistest.Real(t)
	rdb := env.Client(t)
	for _, hook := range hooks {
		rdb.AddHook(hook)
	}
	l := lockerOn(t, rdb, env.Prefix)
	lease := testbed.Take(t, l, "k")
	_ = detach(t, lease) // and nobody resumes it
	strip(t, env.Client(t), core.RecordName(env.Prefix, "k"))

	for range 2 {
		info, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		if len(info.Holders) != 1 || info.Holders[0].Remaining >= 0 || info.Holders[0].Fence != lease.Fence() {
			return "it is not shown"
		}
		if _, err = l.TryAcquire(t.Context(), "k"); !errors.Is(err, core.ErrConflict) {
			return fmt.Sprint("it is free: ", err)
		}
	}
	if forced, err := l.ForceRelease(t.Context(), "k", lease.Fence()); err != nil || !forced {
		return fmt.Sprint("it cannot be forced: ", err)
	}
	next, err := l.TryAcquire(t.Context(), "k")
	if err != nil || next.Fence() <= lease.Fence() {
		return fmt.Sprint("it is not free: ", err)
	}
	return ""
}

// If nobody renews the lease the key is shown as held without end, and ForceRelease frees it.
func TestPersisted_ForceReleaseFreesIt(t *testing.T) {
	t.Parallel()
	for way, strip := range withoutExpiry {
		require.Empty(t, persistedDetached(t, strip), way)
	}
}

func TestPersisted_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]scriptMutant{
		"it is over":               {script: "acquire", old: "  if left < 0 then\n", new: "  if false then\n"},
		"who asks gives it an end": {script: "acquire", old: "holder ~= token and not forced", new: "false"},
		"not even force sees it":   {script: "force", old: "record = read(key, true)\n", new: ""},
		"it ends for who looks":    {script: "inspect", old: "left < 0 and 0 or now + left", new: "now + left"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook, used := m.hook(t)
			require.NotEmpty(t, persistedDetached(t, withoutExpiry["PERSIST"], hook))
			require.Positive(t, used.Load())
		})
	}
}

// The holder itself goes on with such a record.
func TestPersisted_ItsHolderReleasesAndDowngrades(t *testing.T) {
	t.Parallel()
	for _, strip := range withoutExpiry {
		env := redistest.Real(t)
		l := newLocker(t, env)
		for _, downgrades := range []bool{false, true} {
			lease := testbed.Take(t, l, "k")
			strip(t, env.Client(t), core.RecordName(env.Prefix, "k"))
			if downgrades {
				require.NoError(t, lease.Downgrade(t.Context()))
			}
			release(t, lease)
			require.Empty(t, redistest.Keys(t, env.Client(t), core.RecordName(env.Prefix, "k")))
		}
	}
}

// scriptMutant is a broken script, which the checkers have to catch at a workload.
type scriptMutant struct {
	name     string
	script   string // a name in core.Scripts; "": all that have the piece
	old, new string // old stands in the script exactly once
	play     string // a name in plays
}

// hook has a client run the mutant in place of the script.
func (m scriptMutant) hook(t *testing.T) (redis.Hook, *atomic.Int64) {
	t.Helper()
	return redistest.BreakScript(t, core.Scripts, m.script, m.old, m.new)
}
