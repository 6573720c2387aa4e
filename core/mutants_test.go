//go:build soak

package core_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/history"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What is broken, by the piece of the script that held it.
var mutants = []scriptMutant{
	{"acquire takes a held key", "acquire", "'NX', 'PX', ARGV[2])", "'PX', ARGV[2])", "crowd"},
	{"a thin lease is half as long", "acquire", "'NX', 'PX', ARGV[2])", "'NX', 'PX', math.floor(ARGV[2] / 2))", "overrun"},
	{"an inflated key is free", "", "return {its, 1, holder", "return {its, 0, holder", "crowd"},
	{"everybody fits", "acquire", "return held == 0 or limit(last) ~= 1 and (n == 0 or held < n)", "return true", "crowd"},
	{"a reader fits beside a writer", "acquire", "held == 0 or limit(last) ~= 1 and (n == 0", "held == 0 or (n == 0", "readers"},
	{"a writer fits beside a reader", "acquire", "(n == 0 or held < n)", "(n <= 1 or held < n)", "readers"},
	{"one more fits", "acquire", "(n == 0 or held < n)", "(n == 0 or held <= n)", "three"},
	{"acquire does not know its own grant", "acquire", "if mine and ends(mine) <= now then", "if mine then", "lost replies"},
	{"acquire makes half a lease", "acquire", "parked = tonumber(ARGV[2]),", "parked = math.floor(ARGV[2] / 2),", "three, overrun"},
	{"a holder's lease never ends", "", "if deadline <= now then", "if false then", "dead seats"},
	{"the fence is always the same", "acquire", "nobody waits\n    return micros\n", "nobody waits\n    return 7\n", "crowd"},
	{"the fence falls", "acquire", "nobody waits\n    return micros\n", "nobody waits\n    return 3e15 - micros\n", "crowd"},
	{"the next in the queue gets the last fence", "release", "return math.max(last_fence() + 1, micros) end", "return fence end", "queue"},
	{"everybody in the queue is served", "release", "if not dead and not fits(limit(e)) then", "if false then", "queue"},
	{"release by anybody", "release", "elseif mine then", "elseif held > 0 then\n  redis.call('HDEL', key, 'h:' .. last)", "deaf"},
	{"release frees nothing", "release", "    redis.call('DEL', key) -- there is nothing to remember\n", "", "refusals"},
	{"release does not count", "release", "  held = held - 1\n", "", "refused readers"},
	{"an admission does not count", "admit", "fits(limit(e)) and (", "(", "permits"},
	{"an admission does not look who holds the key", "admit", "local fields, fences = {}, {}\n", "mine = exists\nlocal function fits() return true end\nlocal fields, fences = {}, {}\n", "slow cohorts"},
	{"an admission gives one fence to all", "admit", "fences[i] = grant(e, tonumber(ARGV[3 * i + 2]), ARGV[3 * i + 3])", "grant(e, tonumber(ARGV[3 * i + 2]), ARGV[3 * i + 3])\n    fences[i] = mine and tonumber(string.match(mine, '^%d+ (%d+)')) or fence", "cohorts"},
	{"renew does not look", "renew", "replies[i] = 0", "replies[i] = 1", "losses"},
	{"renew makes the record anew", "renew", "if record[3] or not deadline or tonumber(deadline) <= now then", "if not deadline then\n    redis.call('HSET', key, 'fence', 1, 'last', token)\n    deadline, rest = '1', ' 1 x'\n  end\n  if false then", "slow renewals"},
	{"renew does not lengthen", "renew", "if tonumber(deadline) < now + lease then", "if false then", "overrun"},
}

// play is a workload for mutants: short, and rich in what it is named after.
type play struct {
	change  func(w *workload)
	loss    time.Duration // how often all records vanish
	lost    bool          // replies are lost now and then
	slow    bool          // the network holds each piece for up to 4 ms
	clients int           // zero: 3
	many    int           // goroutines of a client; zero: 2
	late    time.Duration // how long a command may be under way; zero: a second
	older   int           // of the clients: they run the scripts of before thin records

	unavailable func(error) // takes why calls were; may be nil
}

var plays = map[string]play{
	"crowd":    {change: func(w *workload) { w.Try = 80 }},
	"queue":    {change: func(w *workload) { w.Try, w.Keys, w.Abandon, w.Overrun = 0, 1, 0, 0 }},
	"refusals": {change: func(w *workload) { w.Try = 100 }},
	"dead seats": {change: func(w *workload) {
		w.Modes, w.Try, w.Fixed, w.Abandon, w.Keys = threeAtATime, 100, 100, 4, 1
		w.MaxLease, w.MaxWork = 120*time.Millisecond, 20*time.Millisecond
	}, late: 50 * time.Millisecond},
	"deaf":                    {change: func(w *workload) { w.Overrun, w.Deaf, w.Try = 50, 70, 100 }},
	"refused readers":         {change: func(w *workload) { w.Modes, w.Try = readersAndWriters, 100 }},
	"overrun":                 {change: func(w *workload) { w.Overrun, w.Deaf = 50, 50 }},
	"abandoned":               {change: func(w *workload) { w.Abandon, w.Fixed, w.Try, w.Keys = 30, 100, 100, 4 }, late: 150 * time.Millisecond},
	"lost replies":            {change: func(w *workload) { w.Retries, w.Try = 3, 100 }, lost: true},
	"lost replies to waiters": {change: func(w *workload) { w.Retries, w.Try, w.Keys = 3, 30, 3 }, lost: true},
	"losses":                  {change: func(w *workload) { w.Fixed, w.MaxLease, w.MaxWork = 0, 120*time.Millisecond, 500*time.Millisecond }, loss: 150 * time.Millisecond},
	"slow renewals": {change: func(w *workload) {
		w.Fixed, w.Try, w.Keys, w.MaxLease = 0, 100, 3, 120*time.Millisecond
		w.MaxWork, w.MaxIdle, w.SlowRenewals = 70*time.Millisecond, 80*time.Millisecond, 80*time.Millisecond
	}},
	"readers":      {change: func(w *workload) { w.Modes, w.Try = readersAndWriters, 80 }},
	"dead readers": {change: func(w *workload) { w.Modes, w.Try, w.Abandon, w.Fixed = readersAndWriters, 100, 30, 100 }, late: 150 * time.Millisecond},
	"cohorts":      {change: readInCohorts, many: 4},
	"slow cohorts": {change: readInCohorts, many: 4, slow: true},
	"permits": {change: func(w *workload) {
		readInCohorts(w)
		w.Modes = append([]mode{{}}, slices.Repeat(threeAtATime, 7)...)
	}, clients: 2, many: 6},
	"three":          {change: func(w *workload) { w.Modes, w.Try = threeAtATime, 80 }},
	"three, overrun": {change: func(w *workload) { w.Modes, w.Overrun, w.Deaf = threeAtATime, 50, 50 }},
}

// readInCohorts has several readers of a client wait for one key.
func readInCohorts(w *workload) {
	w.Modes, w.Try, w.Keys, w.Abandon, w.Overrun, w.MaxWait = readersAndWriters, 20, 1, 0, 0, 3*time.Second
}

// proxy is the way to Redis.
func (p play) proxy(t *testing.T, env *redistest.Env) *redistest.Proxy {
	t.Helper()
	proxy := redistest.NewProxy(t, env.Addr)
	if p.lost {
		var requests atomic.Int64
		proxy.LoseReply(func(request []byte) bool { return bytes.Contains(request, []byte("lock{}")) && requests.Add(1)%20 == 0 })
	}
	if p.slow {
		proxy.Delay(func() time.Duration { return rand.N(4 * time.Millisecond) })
	}
	return proxy
}

// run plays it for a while on clients of this process.
func (p play) run(t *testing.T, seed uint64, length time.Duration, hook redis.Hook) ([]history.Op, history.Rules) {
	t.Helper()
	defer redistest.Busy()()
	env := redistest.Real(t)
	w := workload{
		Keys: 2, Epoch: time.Hour, Modes: []mode{{}},
		MinLease: 100 * time.Millisecond, MaxLease: 200 * time.Millisecond,
		Fixed: 50, Try: 50, MaxWait: 100 * time.Millisecond, Abandon: 2, Overrun: 2,
		MaxWork: 3 * time.Millisecond, MaxIdle: 3 * time.Millisecond, Retries: -1,
	}
	p.change(&w)
	rules := history.Rules{Late: cmp.Or(p.late, time.Second), Line: w.standsInLine(), Patience: 10 * time.Second}
	proxy := p.proxy(t, env)
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var clients sync.WaitGroup
	var files []string
	errs := make([]error, cmp.Or(p.clients, 3))
	for i := range errs {
		c := &soakClient{
			Addr: proxy.Addr, Prefix: env.Prefix, File: filepath.Join(t.TempDir(), fmt.Sprint(i)),
			Client: i + 1, Seed: seed, Goroutines: cmp.Or(p.many, 2), Timeout: 3 * time.Second, Workload: w,
			Older: i < p.older, unavailable: p.unavailable,
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

// tell is what the checkers say of a history, and by which operation the first of them had something to say.
func tell(ops []history.Op, rules history.Rules) (found map[string]int, first int, violations []history.Violation) {
	violations, _, _ = check(ops, rules)
	found, first = map[string]int{}, len(ops)
	for _, v := range violations {
		found[v.Checker]++
		last := v.Ops[len(v.Ops)-1]
		n, _ := slices.BinarySearchFunc(ops, max(last.Return, last.Alive), func(op history.Op, at int64) int { return cmp.Compare(op.Call, at) })
		first = min(first, n)
	}
	return found, first, violations
}

func TestScripts_PlaysOfMutantsFindNothing(t *testing.T) {
	t.Parallel()
	for name, p := range plays {
		t.Run(name, func(t *testing.T) {
			var counts history.Counts
			for try := uint64(0); try < tries && counts.Windows <= 5; try++ {
				seed := soakSeed() + try
				ops, rules := p.run(t, seed, 500*time.Millisecond, nil)
				_, _, violations := tell(ops, rules)
				counts.Add(history.Count(ops))
				t.Logf("%s: %+v (seed %d)", name, counts, seed)
				for _, v := range violations {
					t.Errorf("%s", v)
				}
			}
			require.Greater(t, counts.Windows, 5)
		})
	}
}

// A mutant gets away for so many tries, and so many operations if the machine is slow. The one that is
// hardest to catch is caught by one try in seven.
const tries, getAway = 100, 30_000

func TestScripts_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	var caught atomic.Int64
	t.Run("scripts", func(t *testing.T) {
		for _, m := range mutants {
			t.Run(m.name, func(t *testing.T) {
				hook, used := m.hook(t)
				ops := 0
				for try := uint64(0); try < tries || ops < getAway && try < 10*tries; try++ {
					seed := soakSeed() + try
					run, rules := plays[m.play].run(t, seed, 400*time.Millisecond, hook)
					found, first, _ := tell(run, rules)
					if len(found) > 0 {
						t.Logf("%s, play %d: caught by operation %d: %v (seed %d)", m.name, try+1, ops+first, found, seed)
						caught.Add(1)
						return
					}
					ops += len(run)
				}
				require.Positive(t, used.Load(), "the mutant ran")
				t.Errorf("not caught in %d operations", ops)
			})
		}
	})
	t.Logf("mutants caught: %d of %d", caught.Load(), len(mutants))
}

// mixedPlays are for clients of two versions on the same keys.
var mixedPlays = map[string]play{
	"refusals":     {change: func(w *workload) { w.Try = 100 }},
	"waiting":      {change: func(w *workload) { w.Try, w.MaxWait = 20, 400*time.Millisecond }},
	"readers":      {change: func(w *workload) { w.Modes, w.Try = readersAndWriters, 50 }},
	"permits":      {change: func(w *workload) { w.Modes, w.Try = sixOrOne, 50 }},
	"crashes":      {change: func(w *workload) { w.Abandon, w.Fixed, w.Keys = 20, 100, 4 }},
	"overruns":     {change: func(w *workload) { w.Overrun, w.Deaf, w.Try = 30, 70, 80 }},
	"lost replies": {change: func(w *workload) { w.Retries, w.Try = 3, 50 }, lost: true},
}

// While it is deployed, processes of this version and of the one before share their keys. Nobody is
// refused as unavailable, and no promise is broken.
func TestOlder_LockersOfTwoVersionsShareKeys(t *testing.T) {
	t.Parallel()
	for name, p := range mixedPlays {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var unavailable []error
			p.clients, p.older, p.many = 4, 2, 3
			p.unavailable = func(err error) {
				if refused := redis.Error(nil); errors.As(err, &refused) { // else the machine was slow
					mu.Lock()
					defer mu.Unlock()
					unavailable = append(unavailable, err)
				}
			}
			var counts history.Counts
			for seed := soakSeed(); counts.Ops < 400 || counts.Windows <= 10 || counts.Conflicts <= 20; seed++ {
				ops, rules := p.run(t, seed, 400*time.Millisecond, nil)
				_, _, violations := tell(ops, rules)
				counts.Add(history.Count(ops))
				for _, v := range violations {
					t.Errorf("seed %d: %s", seed, v)
				}
			}
			t.Logf("%+v, %d unavailable", counts, len(unavailable))
			require.Empty(t, unavailable)
		})
	}
}
