package config_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// reloads is an Observer that keeps what it is told, and panics if it is to.
type reloads struct {
	config.NopObserver
	told   []config.Reloaded
	panics bool
}

func (r *reloads) OnReload(_ context.Context, e config.Reloaded) {
	if r.told = append(r.told, e); r.panics {
		panic("the observer's")
	}
}

// requireOne wants one event since the last call.
func (r *reloads) requireOne(t *testing.T, kind config.ReloadKind, version int, inForce *config.File, reason error) {
	t.Helper()
	require.Len(t, r.told, 1)
	e := r.told[0]
	r.told = nil
	require.Equal(t, kind, e.Kind, e.Err)
	require.Equal(t, version, e.Version)
	require.Equal(t, inForce.Hash(), e.Hash)
	require.ErrorIs(t, e.Err, reason)
	require.Equal(t, kind == config.ReloadRefused, e.Err != nil)
}

func TestObserver_IsToldWhatBecomesOfEachFile(t *testing.T) {
	env := redistest.Embedded(t)
	o, said := &reloads{}, &testbed.Log{}
	rt := build(t, env, "guards: {first: {}}", config.WithObserver(o), config.WithLogger(said.Logger()))
	parse := func(file string) *config.File { return load(t, env, file) }
	require.Empty(t, o.told)
	require.Equal(t, 1, rt.Version())
	first := rt.File()

	require.NoError(t, rt.Reload(parse("guards: {first: {}}")))
	o.requireOne(t, config.ReloadUnchanged, 1, first, nil)
	require.Same(t, first, rt.File())
	guard := rt.Guard("first")

	commented := parse("guards: {first: {}} # again")
	require.NotEqual(t, first.Hash(), commented.Hash())
	require.NoError(t, rt.Reload(commented))
	o.requireOne(t, config.ReloadDone, 2, commented, nil)
	require.NotSame(t, guard, rt.Guard("first"))

	require.ErrorIs(t, rt.Reload(parse("service: other\nguards: {second: {}}")), core.ErrInvalidOption)
	o.requireOne(t, config.ReloadRefused, 2, commented, core.ErrInvalidOption)
	require.Equal(t, 2, rt.Version())
	require.Equal(t, commented.Hash(), rt.File().Hash())

	o.panics = true
	second := parse("guards: {first: {}, second: {}}")
	require.NoError(t, rt.Reload(second))
	o.requireOne(t, config.ReloadDone, 3, second, nil)
	require.NotNil(t, rt.Guard("second"), "it is in force whatever the observer does")
	require.Contains(t, said.String(), "the observer panicked")

	require.NoError(t, rt.Close())
	require.ErrorIs(t, rt.Reload(commented), core.ErrClosed)
	o.requireOne(t, config.ReloadRefused, 3, second, core.ErrClosed)
}

func TestObserver_IsToldWhatWatchDoes(t *testing.T) {
	t.Parallel()
	o := &reloads{}
	w := newWatched(t, "guards: {first: {}}\n", config.WithObserver(o))
	look := w.Watcher(w.path)
	first := w.File()
	for _, bad := range []string{"guards: [", "service: other\nguards: {first: {}}\n"} {
		w.write(bad)
		for range 5 {
			look(t.Context())
		}
		o.requireOne(t, config.ReloadRefused, 1, first, core.ErrInvalidOption)
	}
	w.write("guards: {second: {}}\n")
	for range 5 {
		look(t.Context())
	}
	o.requireOne(t, config.ReloadDone, 2, w.File(), nil)
	w.write("guards: {third: [")
	look(t.Context())
	look(t.Context())
	o.requireOne(t, config.ReloadRefused, 2, w.File(), core.ErrInvalidOption)
	w.write("guards: {second: {}}\n")
	look(t.Context())
	look(t.Context())
	o.requireOne(t, config.ReloadUnchanged, 2, w.File(), nil)
}

// outcomes and events are Observers of requests and of what is remembered of them.
type outcomes struct{ told []httplock.OutcomeKind }

func (o *outcomes) OnOutcome(_ context.Context, e httplock.Outcome) { o.told = append(o.told, e.Kind) }

type events struct{ told []idempotency.EventKind }

func (o *events) OnEvent(_ context.Context, e idempotency.Event) { o.told = append(o.told, e.Kind) }

// One option has all of a service counted, and what a user's observers are made with counts too.
func TestRecorder_CountsAllOfAService(t *testing.T) { // not parallel: it looks at what is logged
	env, recorder, said, requests, responses := redistest.Embedded(t), ops.NewRecorder(), &testbed.Log{}, &outcomes{}, &events{}
	rt := build(t, env, `
guards: {pay: {key: "order:{param.id}", anonymous: true, idempotency: {}, on_conflict: {policy: delay, queue: ship}}}
routes: {"POST /orders/:id": pay}
queues: {ship: {}}
`, config.WithRecorder(recorder), config.WithLogger(said.Logger()), config.WithHTTP(httplock.WithObserver(recorder.Requests(requests))),
		config.WithIdempotency(idempotency.WithObserver(recorder.Idempotency(responses))))
	first := rt.File()
	require.Equal(t, &ops.ConfigStats{Version: 1, Hash: first.Hash(), Reloads: map[string]int64{"done": 0, "unchanged": 0, "refused": 0}}, recorder.Snapshot().Config)
	mux, held := http.NewServeMux(), make(chan struct{})
	mux.HandleFunc("POST /orders/{id}", func(_ http.ResponseWriter, r *http.Request) {
		held <- struct{}{}
		<-held
	})
	h := httplock.FromConfig(rt)(mux)
	running := make(chan int)
	go func() { running <- testbed.Do(h, request("POST", "/orders/7", "Idempotency-Key: a")).Status }()
	<-held
	require.Equal(t, http.StatusAccepted, testbed.Do(h, request("POST", "/orders/7", "Idempotency-Key: b")).Status)
	held <- struct{}{}
	require.Equal(t, http.StatusOK, <-running)
	require.ErrorIs(t, rt.Reload(load(t, env, "service: other\nguards: {second: {}}")), core.ErrInvalidOption)

	s := recorder.Snapshot()
	require.Len(t, s.Requests, 1)
	require.EqualValues(t, 1, s.Requests[0].Outcomes[httplock.OutcomeRan])
	require.EqualValues(t, 1, s.Requests[0].Outcomes[httplock.OutcomeParked])
	require.Equal(t, []httplock.OutcomeKind{httplock.OutcomeParked, httplock.OutcomeRan}, requests.told)
	require.ElementsMatch(t, []idempotency.EventKind{idempotency.EventBegun, idempotency.EventParked, idempotency.EventStored}, responses.told)
	require.Equal(t, "POST /orders/{id}", s.Requests[0].Route)
	require.EqualValues(t, 1, s.Locks[0].Calls[core.OutcomeAcquired])
	require.EqualValues(t, 1, s.Locks[0].Calls[core.OutcomeDeferred])
	require.EqualValues(t, 1, s.Queues[0].Enqueued[delayqueue.EnqueueStored])
	require.EqualValues(t, 1, s.Idempotency[idempotency.EventParked])
	require.EqualValues(t, 1, s.Idempotency[idempotency.EventStored])
	require.True(t, s.Config.Refused)
	require.EqualValues(t, 1, s.Config.Reloads["refused"])

	lease, err := rt.Locker().TryAcquire(t.Context(), "order:8")
	require.NoError(t, err)
	_, err = rt.Locker().ForceRelease(t.Context(), "order:8", lease.Fence())
	require.NoError(t, err)
	redistest.Eventually(t, func() bool { return strings.Contains(said.String(), "perkey: lease lost") }, "it is logged as without a recorder")
}

func TestOptions_OfRequestsAreChecked(t *testing.T) {
	f, err := config.Parse("f.yaml", []byte("redis: {url: 'redis://h'}\nguards: {g: {key: k, fixed_key: true, anonymous: true, idempotency: {}}}"))
	require.NoError(t, err)
	for what, opt := range map[string]config.Option{
		"guards.g: want 1 to": config.WithHTTP(httplock.WithMaxBody(-1)), "guards.g.idempotency: want 1s": config.WithIdempotency(idempotency.WithTTL(-1)),
		"WithObserver": config.WithObserver(nil), "WithRecorder": config.WithRecorder(nil),
	} {
		_, err := config.Build(f, opt)
		require.ErrorIs(t, err, core.ErrInvalidOption, what)
		require.ErrorContains(t, err, what)
	}
}

// Keys of responses are read from the file, and again at a reload.
func TestResponses_AreSealedAsTheFileSays(t *testing.T) {
	env := redistest.Embedded(t)
	const file = `
idempotency: {encryption: {current: %, keys: {%}}}
guards: {pay: {key: "order:{param.id}", anonymous: true, idempotency: {}}}
routes: {"POST /orders/:id": pay}
`
	variables := map[string]string{"K1": sealingKey, "K2": strings.Replace(sealingKey, sealingKey[:4], "AAAA", 1)}
	parse := func(current, keys string) (*config.File, error) {
		text := strings.Replace(strings.Replace(file, "%", current, 1), "%", keys, 1)
		return config.ParseIn("f.yaml", []byte(redisOf(env)+text), variables)
	}
	f, err := parse("k1", "k1: {env: K1}")
	require.NoError(t, err)
	rt, err := config.Build(f)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rt.Close() })
	reload := func(current, keys string) {
		f, err := parse(current, keys)
		require.NoError(t, err)
		require.NoError(t, rt.Reload(f))
	}
	mux, runs := http.NewServeMux(), 0
	mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, _ *http.Request) {
		runs++
		_, _ = w.Write([]byte("a receipt"))
	})
	h := httplock.FromConfig(rt)(mux)
	post := func(key string) testbed.Answer {
		return testbed.Do(h, request("POST", "/orders/7", "Idempotency-Key: "+key))
	}
	require.Equal(t, "a receipt", post("a").Body)
	for name := range records(t, env, rt) {
		stored, err := rt.Redis().HGet(t.Context(), name, "outcome").Result()
		require.NoError(t, err)
		require.NotContains(t, stored, "receipt")
		require.Contains(t, stored, "k1")
	}
	reload("k2", "k1: {env: K1}, k2: {env: K2}")
	require.Equal(t, "true", post("a").Header.Get("Idempotent-Replayed"), "the old key opens what it sealed")
	require.Equal(t, "a receipt", post("b").Body)
	reload("k2", "k2: {env: K2}")
	require.Equal(t, "true", post("b").Header.Get("Idempotent-Replayed"))
	require.Equal(t, http.StatusInternalServerError, post("a").Status, "its key is gone")
	require.Equal(t, 2, runs)

	_, err = parse("k3", "k1: {env: NONE}")
	require.ErrorContains(t, err, "idempotency.encryption.current")
	require.ErrorContains(t, err, "idempotency.encryption.keys.k1.env")
}
