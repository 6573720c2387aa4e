package luascript_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var count = luascript.New("return redis.call('INCRBY', KEYS[1], ARGV[1])")

func TestLoad_AnIncludeStandsForItsFile(t *testing.T) {
	files := fstest.MapFS{
		"lua/main.lua":  {Data: []byte("-- what it does\n-- #include a.lua\nfor i = 1, 2 do\n  -- #include b.lua\nend\n")},
		"lua/a.lua":     {Data: []byte("local a = 1\n-- #include b.lua\n")},
		"lua/b.lua":     {Data: []byte("local b = 2\n")},
		"lua/wrong.lua": {Data: []byte("-- #include c.lua\n")},
	}
	s := luascript.Load(files, "main")
	require.Equal(t, "-- what it does\nlocal a = 1\nlocal b = 2\nfor i = 1, 2 do\nlocal b = 2\nend\n", s.Source())
	require.Equal(t, redis.NewScript(s.Source()).Hash(), s.Hash())
	require.Panics(t, func() { luascript.Load(files, "c") })
	require.Panics(t, func() { luascript.Load(files, "wrong") })
}

var (
	comments = regexp.MustCompile(`--.*`)
	texts    = regexp.MustCompile(`'[^'\n]*'`)
	called   = regexp.MustCompile(`(?:^|[^.:\w])([A-Za-z_]\w*)\(`)
	builtin  = strings.Fields("and assert elseif error function if in ipairs next not or pairs return select tonumber tostring type unpack until while")
)

// requireFunctions has each function that a script calls defined in it, or in what it includes: Redis
// learns of one that is not only when it is called.
func requireFunctions(t *testing.T, path, source string) {
	t.Helper()
	source = texts.ReplaceAllString(comments.ReplaceAllString(source, ""), "''")
	known := slices.Clone(builtin)
	for _, call := range called.FindAllStringSubmatch(source, -1) {
		name := regexp.QuoteMeta(call[1])
		if !slices.Contains(known, name) {
			known = append(known, name)
			require.Regexp(t, `local function `+name+`\(|local [\w, ]*\b`+name+`\b|function(?: \w+)?\([\w, ]*\b`+name+`\b`, source, "%s calls %s", path, name)
		}
	}
}

// Redis compiles each script of this module.
func TestLoad_TheSourcesAreLua(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		for _, folder := range []string{"core/internal/store", "delayqueue/internal/store", "idempotency"} {
			dir := os.DirFS(filepath.Join("../..", folder))
			paths, err := filepath.Glob(filepath.Join("../..", folder, "lua/*.lua"))
			require.NoError(t, err)
			require.NotEmpty(t, paths)
			parts := map[string]bool{}
			for _, path := range paths {
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				for line := range strings.Lines(string(text)) {
					if part, is := strings.CutPrefix(strings.TrimSpace(line), "-- #include "); is {
						parts[part] = true
					}
				}
			}
			for _, path := range paths {
				if parts[filepath.Base(path)] {
					continue
				}
				s := luascript.Load(dir, strings.TrimSuffix(filepath.Base(path), ".lua"))
				require.NotContains(t, s.Source(), "#include")
				require.False(t, strings.HasPrefix(s.Source(), "#!"), path)
				hash, err := rdb.ScriptLoad(t.Context(), s.Source()).Result()
				require.NoError(t, err, path)
				require.Equal(t, s.Hash(), hash)
				if !env.Real { // once is enough
					requireFunctions(t, path, s.Source())
				}
			}
		}
	})
}

func TestScript_ManyCallersWhileScriptsAreFlushed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		var callers, flushes sync.WaitGroup
		var want atomic.Int64
		done := make(chan struct{})
		flushes.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
					_ = rdb.ScriptFlush(context.Background()).Err()
				}
			}
		})
		other := luascript.New("return redis.call('INCRBY', KEYS[1], ARGV[1]) -- another one")
		keys := []string{env.Prefix + "count"}
		for range 8 {
			callers.Go(func() {
				for i := range 10 {
					if err := count.Run(t.Context(), rdb, keys, 1).Err(); err != nil {
						t.Error(err)
					}
					var calls []*luascript.Call
					for j := range 20 {
						call := []*luascript.Script{count, other}[(i+j)%2].Prepare(t.Context(), keys, 1)
						calls = append(calls, &call)
					}
					if err := luascript.Pipeline(t.Context(), rdb, calls); err != nil {
						t.Error(err)
					}
					for _, call := range calls {
						if _, is := call.Val().(int64); !is {
							t.Errorf("%v: %v", call, call.Err())
						}
					}
					want.Add(21)
				}
			})
		}
		callers.Wait()
		close(done)
		flushes.Wait()
		require.Equal(t, want.Load(), must(rdb.Get(t.Context(), keys[0]).Int64()), "each ran once")
	})
}

func TestPipeline_ARefusedConnectionIsAnErrorOfEachCall(t *testing.T) {
	addr := redistest.Start(t).Addr
	require.NoError(t, redistest.Client(t, &redis.Options{Addr: addr}).ConfigSet(t.Context(), "requirepass", "right").Err())
	rdb := redistest.Client(t, &redis.Options{Addr: addr, Password: "wrong"})
	first, second, after := count.Prepare(t.Context(), []string{"k"}, 1), count.Prepare(t.Context(), []string{"k"}, 1), count.Prepare(t.Context(), []string{"k"}, 1)
	ping, other := redis.NewStatusCmd(t.Context(), "ping"), redis.NewStatusCmd(t.Context(), "ping")
	_ = luascript.Pipeline(t.Context(), rdb, []*luascript.Call{&first, &second}, ping)
	_ = luascript.Between(t.Context(), rdb, []redis.Cmder{other}, []*luascript.Call{&after}, nil)
	for _, cmd := range []redis.Cmder{&first, &second, ping, &after, other} {
		require.ErrorContains(t, cmd.Err(), "WRONGPASS")
	}
}

func must(n int64, err error) int64 {
	if err != nil {
		panic(err)
	}
	return n
}

// requests counts the commands that a client sends, and answers them all if it has an answer.
type requests struct {
	names  []string
	answer error
}

func (r *requests) note(cmd redis.Cmder) {
	if name := cmd.Name(); name == "wait" || strings.HasPrefix(name, "eval") { // not what makes a connection
		r.names = append(r.names, name)
	}
}

func (r *requests) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *requests) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.note(cmd)
		if r.answer != nil {
			cmd.SetErr(r.answer)
			return r.answer
		}
		return next(ctx, cmd)
	}
}

func (r *requests) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			r.note(cmd)
			cmd.SetErr(r.answer)
		}
		if r.answer != nil {
			return r.answer
		}
		return next(ctx, cmds)
	}
}

func TestPipeline_OneCallCarriesTheSource(t *testing.T) {
	env := &redistest.Env{Addr: redistest.Start(t).Addr}
	rdb, sent := env.Client(t), &requests{}
	rdb.AddHook(sent)
	acks := redis.NewIntCmd(t.Context(), "wait", 0, 1)
	var calls []*luascript.Call
	for range 3 {
		call := count.Prepare(t.Context(), []string{"k"}, 2)
		calls = append(calls, &call)
	}
	require.NoError(t, luascript.Pipeline(t.Context(), rdb, calls, acks))
	require.Equal(t, []string{"evalsha", "evalsha", "evalsha", "wait", "eval", "evalsha", "evalsha", "wait"}, sent.names)
	for i, call := range calls {
		require.EqualValues(t, 2*(i+1), call.Val())
	}
	require.NoError(t, acks.Err())

	sent.names = nil
	require.NoError(t, luascript.Pipeline(t.Context(), rdb, nil, acks), "nothing is to be sent")
	require.Empty(t, sent.names)
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

func TestScript_AServerThatKnowsNoScriptIsNotAskedForEver(t *testing.T) {
	rdb, sent := redistest.Embedded(t).Client(t), &requests{answer: redisError("NOSCRIPT No matching script.")}
	rdb.AddHook(sent)
	require.ErrorContains(t, count.Run(t.Context(), rdb, []string{"k"}, 1).Err(), "NOSCRIPT")
	require.Equal(t, []string{"evalsha", "eval"}, sent.names)

	sent.names = nil
	a, b := count.Prepare(t.Context(), []string{"k"}, 1), count.Prepare(t.Context(), []string{"k"}, 1)
	require.ErrorContains(t, luascript.Pipeline(t.Context(), rdb, []*luascript.Call{&a, &b}), "NOSCRIPT")
	require.Equal(t, []string{"evalsha", "evalsha", "eval", "evalsha", "eval"}, sent.names)
	require.ErrorContains(t, a.Err(), "NOSCRIPT")
	require.ErrorContains(t, b.Err(), "NOSCRIPT")
}

func TestPipeline_EachNodeOfAClusterLearnsTheScript(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	rdb := cluster.Client(t)
	for round := range 2 {
		var calls []*luascript.Call
		for i := range 30 {
			call := count.Prepare(t.Context(), []string{fmt.Sprint("key", i)}, 1)
			calls = append(calls, &call)
		}
		require.NoError(t, luascript.Pipeline(t.Context(), rdb, calls))
		for _, call := range calls {
			require.NoError(t, call.Err())
			require.EqualValues(t, round+1, call.Val())
		}
		require.NoError(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
			return node.ScriptFlush(ctx).Err()
		}))
	}
}

func TestCall_WhatIsSentOnceIsNotSentAgainAfterALostReply(t *testing.T) {
	for _, once := range []bool{false, true} {
		server := redistest.Start(t)
		direct := (&redistest.Env{Addr: server.Addr}).Client(t)
		require.NoError(t, count.Run(t.Context(), direct, []string{"k"}, 0).Err())
		proxy := redistest.NewProxy(t, server.Addr)
		var lost atomic.Int64
		proxy.LoseReply(func(request []byte) bool { return strings.Contains(string(request), count.Hash()) && lost.Add(1) == 1 })
		rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: 3})
		call := count.Call(t.Context(), append(count.Args(nil, 1), "k", 1), once)
		call.Send(t.Context(), rdb)
		n, err := direct.Get(t.Context(), "k").Int()
		require.NoError(t, err)
		if once {
			require.Error(t, call.Err())
			require.Equal(t, 1, n)
		} else {
			require.NoError(t, call.Err())
			require.Equal(t, 2, n)
		}
	}
}
