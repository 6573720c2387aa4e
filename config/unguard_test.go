package config_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

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

// Sections of one file. Each of them may come last, and lose its end.
var sections = map[string]string{
	"guards": `
guards:
  pay:
    key: order:{param.id}
    ttl: 20s
  wallet:
    key: wallet:{json.user}
  tick:
    max_hold: 1m
`,
	"routes": `
routes:
  POST /orders/:id/pay: pay
  "PUT /carts/{id}":
    key: "cart:{param.id}"
    ttl: 5s
`,
	"asynq": `
asynq:
  wallet:charge: wallet
  mail:*:
    key: "{type}"
    ttl: 5s
`,
}

// waysIn are the ways by which work of the keys comes in. Each returns whether it was refused.
func waysIn(t *testing.T, rt *config.Runtime) (keys []string, refused map[string]func() bool) {
	t.Helper()
	mux := http.NewServeMux()
	for _, pattern := range []string{"POST /orders/{id}/pay", "PUT /carts/{id}"} {
		mux.Handle(pattern, http.NotFoundHandler())
	}
	served := httplock.FromConfig(rt)(mux)
	tasks := asynqlock.FromConfig(rt)(asynq.HandlerFunc(noTask))
	send := func(method, target string) func() bool {
		return func() bool { return testbed.Do(served, request(method, target)).Status == http.StatusConflict }
	}
	process := func(taskType string) func() bool {
		return func() bool {
			return errors.Is(tasks.ProcessTask(t.Context(), asynq.NewTask(taskType, []byte(`{"user":7}`))), core.ErrConflict)
		}
	}
	return []string{"order:7", "cart:7", "wallet:7", "mail:welcome", "tick"}, map[string]func() bool{
		"POST": send("POST", "/orders/7/pay"), "PUT": send("PUT", "/carts/7"),
		"wallet:charge": process("wallet:charge"), "mail:welcome": process("mail:welcome"),
		"Guard": func() bool {
			err := rt.Guard("tick").Do(t.Context(), core.Call{Key: "tick"}, func(context.Context) error { return nil })
			return errors.Is(err, core.ErrConflict)
		},
	}
}

// Whatever a full disk, a copy that broke off or an empty template leaves of a file: no guard is gone, and the file is
// refused in words, or it has them all.
func TestWatch_AFileThatLostItsEnd(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, order := range [][]string{{"guards", "routes", "asynq"}, {"guards", "asynq", "routes"}, {"asynq", "routes", "guards"}} {
			right := redisOf(env)
			for _, section := range order {
				right += sections[section][1:]
			}
			path, logs := filepath.Join(t.TempDir(), "perkey.yaml"), &testbed.Log{}
			write := func(text string) *config.File {
				t.Helper()
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
				f, _ := config.Load(path)
				return f
			}
			rt, err := config.Build(write(right), config.WithLogger(logs.Logger()))
			require.NoError(t, err)
			keys, ways := waysIn(t, rt)
			var releases []func()
			for _, key := range keys {
				releases = append(releases, hold(t, rt, key))
			}
			refused, taken := 0, 0
			for end := range right {
				if right[end] != '\n' || end == len(right)-1 {
					continue
				}
				before, told := rt.File(), strings.Count(logs.String(), "not reloaded")
				write(right[:end+1])
				look := rt.Watcher(path)
				look(t.Context())
				look(t.Context())
				for name, isRefused := range ways {
					assert.True(t, isRefused(), "%s came in after %q", name, right[:end+1])
				}
				if rt.File() == before {
					refused++
					assert.Equal(t, told+1, strings.Count(logs.String(), "not reloaded: the old file stays in force"), "%q", right[:end+1])
				} else {
					taken++
				}
				require.NoError(t, rt.Reload(write(right)))
			}
			t.Logf("%s last: %d of %d refused", order[2], refused, refused+taken)
			assert.Greater(t, refused, 10)
			for _, release := range releases {
				release()
			}
			require.NoError(t, rt.Close())
		}
	})
}

const threeRoutes = `
routes:
  POST /a/:id: {key: "a:{param.id}"}
  HEAD /b: {key: b, fixed_key: true, safe_methods: lock}
  GET /b: {key: b, fixed_key: true, safe_methods: share}
asynq:
  mail:*: {key: "{type}", at_once: 2}
  mail:send: {key: send, fixed_key: true}
  /mail: {key: "{type}", at_once: 2}
  POST /mail: {key: "{type}", at_once: 2}
  DELETE mail: {key: "{type}", at_once: 2}
`

// Each entry stands for itself alone.
func TestReload_TakesOnlyTheGuardsThatUnguardNames(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	const dropped = "the new file has no guard for these tasks, so that what has one key would run at once; put it back or, if this is meant, add it to the file's list: unguard: "
	for _, c := range []struct{ line, unguard, problem string }{
		{`POST /a/:id: {key: "a:{param.id}"}`, "POST /a/{id}", ""},
		{`POST /a/:id: {key: "a:{param.id}"}`, "POST /a/{name}", `routes."POST /a/:id": `},
		{`POST /a/:id: {key: "a:{param.id}"}`, "PUT /a/{id}", `routes."POST /a/:id": `},
		{`POST /a/:id: {key: "a:{param.id}"}`, "POST /*", `routes."POST /a/:id": `},
		{`POST /a/:id: {key: "a:{param.id}"}`, "POST /a/*id", `routes."POST /a/:id": `},
		{`HEAD /b: {key: b, fixed_key: true, safe_methods: lock}`, "'*'", `routes."HEAD /b": `},
		{`HEAD /b: {key: b, fixed_key: true, safe_methods: lock}`, "HEAD /b", ""},
		{`mail:send: {key: send, fixed_key: true}`, "'*'", `asynq."mail:send": ` + dropped + `["mail:send"]`},
		{`mail:send: {key: send, fixed_key: true}`, "mail:send", ""},
		{`mail:*: {key: "{type}", at_once: 2}`, "mail:sent", `asynq."mail:*": ` + dropped + `["mail:*"]`},
		{`mail:*: {key: "{type}", at_once: 2}`, "'mail:*'", ""},
		{`/mail: {key: "{type}", at_once: 2}`, "/mail", ""}, // asynq does not mind how its types look
		{`POST /mail: {key: "{type}", at_once: 2}`, "POST /mail", ""},
		{`DELETE mail: {key: "{type}", at_once: 2}`, "DELETE mail", ""},
	} {
		rt := build(t, env, threeRoutes)
		without := strings.Replace(threeRoutes, "  "+c.line+"\n", "", 1) + "unguard:\n  - " + c.unguard + "\n"
		require.NotContains(t, without, "  "+c.line)
		in, f := rt.File(), load(t, env, without)
		err := rt.Reload(f)
		if c.problem == "" {
			assert.NoError(t, err, "%s: %s", c.line, c.unguard)
			assert.Same(t, f, rt.File())
			continue
		}
		assert.Contains(t, problems(t, err), c.problem, "%s: %s", c.line, c.unguard)
		assert.Same(t, in, rt.File(), "%s: %s", c.line, c.unguard)
	}
}

func TestUnguard_IsToldAtEachStart(t *testing.T) {
	t.Parallel()
	env, logs := redistest.Embedded(t), &testbed.Log{}
	rt := build(t, env, threeRoutes, config.WithLogger(logs.Logger()))
	assert.NotContains(t, logs.String(), "unguard")
	assert.Empty(t, rt.File().Warnings())
	const unguard = "unguard: [POST /old, sms:send]\n"
	build(t, env, threeRoutes+unguard, config.WithLogger(logs.Logger()))
	const told = `level=WARN msg="config: unguard: these have no guard of their own, as the file says: what has one key may run at once" file=perkey.yaml unguard="[POST /old sms:send]"`
	assert.Equal(t, 1, strings.Count(logs.String(), told), logs)
	require.NoError(t, rt.Reload(load(t, env, threeRoutes+unguard)))
	assert.Equal(t, 2, strings.Count(logs.String(), told), logs)
}

func TestFile_WarningsHavePlaces(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	warnings := func(file string) (lines []string) {
		for _, w := range load(t, env, file).Warnings() {
			lines = append(lines, w.String())
		}
		return lines
	}
	const nothing = "guards nothing: it has neither routes nor asynq, so that only what the program takes from it with Guard(NAME) has a guard"
	assert.Equal(t, []string{"perkey.yaml:1:1: " + nothing}, warnings("guards: {tick: {}}\n"))
	assert.Empty(t, warnings("asynq: {a: {key: k, fixed_key: true}}\n"))
	assert.Equal(t, []string{
		"perkey.yaml:4:11: unguard[0]: POST /x has no guard of its own, as this list says",
		"perkey.yaml:4:20: unguard[1]: mail:send has no guard of its own, as this list says",
	}, warnings("routes: {POST /a: {key: k, fixed_key: true}}\nunguard: [POST /x, mail:send]\n"))
}

// The router says what is served: at start, and from then on at each reload.
func TestCheckRoutes_AsksForUnguard(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	const guarded = "routes:\n  POST /a/:id: {key: k, fixed_key: true}\n"
	rt := build(t, env, guarded)
	registered := []httplock.RegisteredRoute{
		{Method: "POST", Pattern: "/a/{id}", FromConfig: true}, {Method: "POST", Pattern: "/b/{id}", FromConfig: true}, {Method: "PUT", Pattern: "shop.example/c", FromConfig: true},
	}
	const none = "no guard is in front of this route; with gin and a group of echo's, Use comes before the routes. If it needs none, say so in the list of unguarded routes"
	require.Equal(t, "routes: POST /b/{id}: "+none+"\nroutes: PUT shop.example/c: "+none, problems(t, rt.CheckRoutes(registered)))
	right := guarded + "unguard: [POST /b/:id, PUT /c, mail:send]\n"
	require.NoError(t, rt.Reload(load(t, env, right)))
	require.NoError(t, rt.CheckRoutes(registered))
	require.Equal(t, "routes: POST /b/{id}: "+none, problems(t, rt.Reload(load(t, env, strings.Replace(right, "POST /b/:id, ", "", 1)))), "the entry is needed")
	require.Equal(t, `routes."POST /a/:id": the new file has no guard for this route, so that what has one key would run at once; put it back or, `+
		`if this is meant, add it to the file's list: unguard: ["POST /a/:id"]`,
		problems(t, rt.Reload(load(t, env, "unguard: [POST /b/:id, PUT /c]\n"))), "told once")
	require.NoError(t, rt.Reload(load(t, env, "unguard: [POST /a/:id, POST /b/:id, PUT /c]\n")))
}

// A guard that the program asks for is in use; others may be renamed.
func TestReload_TakesNoGuardThatTheProgramAsksFor(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, "guards: {asked: {}, other: {}}\n")
	assert.Nil(t, rt.Guard("later"))
	require.NotNil(t, rt.Guard("asked"))
	require.NoError(t, rt.Reload(load(t, env, "guards: {asked: {}, new: {}}\n")))
	err := rt.Reload(load(t, env, "guards: {new: {}}\n"))
	require.Equal(t, `guards.asked: the new file has no such guard, but the program asks for it: put it back, or restart a program that does not call Guard("asked")`, problems(t, err))
	require.NotNil(t, rt.Guard("asked"))
}

// Whatever goes wrong over a new file, the service goes on under its old one.
func TestReload_APanicLeavesTheOldFileInForce(t *testing.T) {
	t.Parallel()
	env, logs, o := redistest.Embedded(t), &testbed.Log{}, &reloads{}
	rt := build(t, env, threeRoutes, config.WithLogger(logs.Logger()), config.WithObserver(o))
	in := rt.File()
	err := rt.Reload(load(t, env, threeRoutes+"defaults: {ttl: 7s}\n").Break())
	require.ErrorContains(t, err, "config: reload: a mistake in perkey, not in perkey.yaml: panic: runtime error: ")
	assert.Same(t, in, rt.File())
	require.Len(t, o.told, 1)
	assert.Equal(t, config.ReloadRefused, o.told[0].Kind)
	assert.Contains(t, logs.String(), "config: a panic over a new file")
	assert.Contains(t, logs.String(), "policy.go", "the stack is that of the panic")
	require.NoError(t, rt.Reload(load(t, env, threeRoutes+"defaults: {ttl: 8s}\n")), "the next one is taken")
}
