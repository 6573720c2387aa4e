package core_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/history"
	"github.com/perkey-go/perkey/internal/redistest"
)

// mutant is a broken script, which the checkers have to catch at a workload.
type mutant struct {
	name     string
	script   string // a name in core.Scripts
	old, new string // old stands in the script exactly once
	play     string // a name in plays
}

// What is broken, by the piece of the script that held it.
var mutants = []mutant{
	{"acquire takes a held key", "acquire", "if owner then", "if false then", "crowd"},
	{"acquire gives everybody the owner's grant", "acquire", "if owner == ARGV[1] then", "if owner then", "crowd"},
	{"acquire does not know its own grant", "acquire", "if owner == ARGV[1] then", "if false then", "lost replies"},
	{"acquire makes half a lease", "acquire", "if not stored or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then\n  redis.call('PEXPIRE', KEYS[1], ARGV[2])", "if true then\n  redis.call('PEXPIRE', KEYS[1], math.floor(ARGV[2] / 2))", "overrun"},
	{"acquire makes a lease without an end", "acquire", "if not stored or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then", "if false then", "abandoned"},
	{"the fence is always the same", "acquire", "local fence = time[1] * 1000000 + time[2]", "local fence = 7", "crowd"},
	{"the fence is the time in seconds", "acquire", "time[1] * 1000000 + time[2]", "time[1] * 1000000", "crowd"},
	{"the fence falls", "acquire", "local fence = time[1] * 1000000 + time[2]\nif stored then", "local fence = 3e15 - time[1] * 1000000 - time[2]\nif false then", "crowd"},
	{"release by anybody", "release", "if record[1] ~= ARGV[1] then", "if false then", "overrun"},
	{"release frees nothing", "release", "redis.call('DEL', KEYS[1])", "local _ = 0", "crowd"},
	{"renew for anybody", "renew", "if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then", "if redis.call('EXISTS', KEYS[1]) == 0 then", "losses"},
	{"renew makes the record anew", "renew", "  return 0\n", "  if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end\n  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', 1)\n", "slow renewals"},
	{"renew does not lengthen", "renew", "if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then", "if false then", "overrun"},
	{"renew does not look", "renew", "  return 0\n", "  return 1\n", "losses"},
}

// play is a workload for mutants: short, and rich in what it is named after.
type play struct {
	change func(w *workload)
	loss   time.Duration // how often all records vanish
	lost   bool          // replies are lost now and then
	late   time.Duration // how long a command may be under way; zero: a second
}

var plays = map[string]play{
	"crowd":        {change: func(w *workload) { w.Try = 80 }},
	"overrun":      {change: func(w *workload) { w.Overrun, w.Deaf = 50, 50 }},
	"abandoned":    {change: func(w *workload) { w.Abandon, w.Fixed, w.Try, w.Keys = 30, 100, 100, 4 }, late: 150 * time.Millisecond},
	"lost replies": {change: func(w *workload) { w.Retries, w.Try = 3, 100 }, lost: true},
	"losses":       {change: func(w *workload) { w.Fixed, w.MaxLease, w.MaxWork = 0, 120*time.Millisecond, 500*time.Millisecond }, loss: 150 * time.Millisecond},
	"slow renewals": {change: func(w *workload) {
		w.Fixed, w.Try, w.Keys, w.MaxLease = 0, 100, 3, 120*time.Millisecond
		w.MaxWork, w.MaxIdle, w.SlowRenewals = 70*time.Millisecond, 80*time.Millisecond, 80*time.Millisecond
	}},
	"readers":        {change: func(w *workload) { w.Modes, w.Try = readersAndWriters, 80 }},
	"dead readers":   {change: func(w *workload) { w.Modes, w.Try, w.Abandon, w.Fixed = readersAndWriters, 100, 30, 100 }, late: 150 * time.Millisecond},
	"three":          {change: func(w *workload) { w.Modes, w.Try = threeAtATime, 80 }},
	"three, overrun": {change: func(w *workload) { w.Modes, w.Overrun, w.Deaf = threeAtATime, 50, 50 }},
}

// run plays it for a while on clients of this process.
func (p play) run(t *testing.T, seed uint64, length time.Duration, hook redis.Hook) ([]history.Op, history.Rules) {
	t.Helper()
	env := redistest.Real(t)
	w := workload{
		Keys: 2, Epoch: time.Hour, Modes: []mode{{}},
		MinLease: 100 * time.Millisecond, MaxLease: 200 * time.Millisecond,
		Fixed: 50, Try: 50, MaxWait: 100 * time.Millisecond, Abandon: 2, Overrun: 2,
		MaxWork: 3 * time.Millisecond, MaxIdle: 3 * time.Millisecond, Retries: -1,
	}
	p.change(&w)
	w.skipUnlessPossible(t)
	rules := history.Rules{Late: cmp.Or(p.late, time.Second), Line: callsStandInLine, Patience: 10 * time.Second}
	proxy := redistest.NewProxy(t, env.Addr)
	if p.lost {
		var requests atomic.Int64
		proxy.LoseReply(func(request []byte) bool {
			return bytes.Contains(request, []byte("lock{}")) && requests.Add(1)%20 == 0
		})
	}

	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var clients sync.WaitGroup
	var files []string
	errs := make([]error, 3)
	for i := range errs {
		c := &soakClient{
			Addr: proxy.Addr, Prefix: env.Prefix, File: filepath.Join(t.TempDir(), fmt.Sprint(i)),
			Client: i + 1, Seed: seed, Goroutines: 2, Timeout: 3 * time.Second, Workload: w,
		}
		if hook != nil {
			c.hooks = append(c.hooks, hook)
		}
		files = append(files, c.File)
		clients.Go(func() { errs[i] = c.run(ctx) })
	}
	if p.loss > 0 {
		rdb := env.Client(t)
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(p.loss):
				loss := history.Loss{From: history.Now()}
				for _, name := range redistest.Keys(t, rdb, env.Prefix) {
					rdb.Del(t.Context(), name)
				}
				loss.To = history.Now()
				rules.Losses = append(rules.Losses, loss)
			}
		}
	}
	clients.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	ops, err := history.Read(files...)
	require.NoError(t, err)
	return ops, rules
}

// tell is what the checkers say of a history, and by which operation the first of
// them had something to say.
func tell(ops []history.Op, rules history.Rules) (found map[string]int, first int, violations []history.Violation) {
	violations, _ = history.Linear(ops, rules)
	violations = append(append(violations, history.Windows(ops, rules)...), history.Fences(ops)...)
	found, first = map[string]int{}, len(ops)
	for _, v := range violations {
		found[v.Checker]++
		last := v.Ops[len(v.Ops)-1]
		n, _ := slices.BinarySearchFunc(ops, max(last.Return, last.Alive), func(op history.Op, at int64) int { return cmp.Compare(op.Call, at) })
		first = min(first, n)
	}
	return found, first, violations
}

func TestPlaysOfMutantsFindNothingInTheEngine(t *testing.T) {
	for name, p := range plays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := soakSeed()
			ops, rules := p.run(t, seed, 800*time.Millisecond, nil)
			_, _, violations := tell(ops, rules)
			counts := history.Count(ops)
			t.Logf("%s: %+v (seed %d)", name, counts, seed)
			for _, v := range violations {
				t.Errorf("%s", v)
			}
			require.Greater(t, min(counts.Windows, counts.Conflicts), 10)
		})
	}
}

// tries is how often a mutant may get away.
const tries = 8

func TestMutantsAreCaught(t *testing.T) {
	var caught atomic.Int64
	t.Run("scripts", func(t *testing.T) {
		for _, m := range mutants {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				hook, used := m.hook(t)
				ops := 0
				for try := range uint64(tries) {
					seed := soakSeed() + try
					run, rules := plays[m.play].run(t, seed, 600*time.Millisecond, hook)
					require.Positive(t, used.Load(), "the mutant ran")
					found, first, _ := tell(run, rules)
					if len(found) > 0 {
						t.Logf("%s: caught by operation %d: %v (seed %d)", m.name, ops+first, found, seed)
						caught.Add(1)
						return
					}
					ops += len(run)
				}
				t.Errorf("not caught in %d operations", ops)
			})
		}
	})
	t.Logf("mutants caught: %d of %d", caught.Load(), len(mutants))
}

// hook has a client run the mutant in place of the script.
func (m mutant) hook(t *testing.T) (redis.Hook, *atomic.Int64) {
	t.Helper()
	source := core.Scripts[m.script]
	require.Equal(t, 1, strings.Count(source, m.old), "%s.lua has once: %s", m.script, m.old)
	broken := strings.Replace(source, m.old, m.new, 1)
	h := &swap{from: [2]string{source, redis.NewScript(source).Hash()}, to: [2]string{broken, redis.NewScript(broken).Hash()}}
	return h, &h.used
}

// swap is a hook that runs one script for another.
type swap struct {
	from, to [2]string // source and hash
	used     atomic.Int64
}

func (s *swap) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *swap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.change(cmd)
		return next(ctx, cmd)
	}
}

func (s *swap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.change(cmd)
		}
		return next(ctx, cmds)
	}
}

func (s *swap) change(cmd redis.Cmder) {
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return
	}
	args := cmd.Args() // the command's own
	for i, from := range s.from {
		if args[1] == from {
			args[1] = s.to[i]
			s.used.Add(1)
		}
	}
}
