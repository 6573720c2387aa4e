package config_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

const operated = `
service: shop
ops: {interval: 100ms}
guards: {pay: {key: "order:{param.id}"}}
routes: {"POST /orders/:id": pay}
queues: {ship: {worker: {concurrency: 3}}}
`

// awaitFleet reads what processes tell, by their pids, until it is so.
func awaitFleet(t testing.TB, env *redistest.Env, ok func(map[int]ops.Process) bool, what string) {
	t.Helper()
	rdb := env.Client(t)
	redistest.Eventually(t, func() bool {
		fleet, err := ops.ReadFleet(t.Context(), rdb, env.Prefix)
		require.NoError(t, err)
		require.Zero(t, fleet.Damaged)
		processes := map[int]ops.Process{}
		for _, p := range fleet.Processes {
			processes[p.PID] = p
		}
		return ok(processes)
	}, what)
}

// processVar makes this test binary a process with a file, which is its value.
const processVar = "PERKEY_TEST_CONFIG"

// runProcess holds order:8 and works the queue ship, until its standard input ends.
func runProcess() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	f, err := config.Parse("perkey.yaml", []byte(os.Getenv(processVar)))
	must(err)
	rt, err := config.Build(f)
	must(err)
	lease, err := rt.Locker().TryAcquire(context.Background(), "order:8")
	must(err)
	worker, err := rt.Worker("ship", func(context.Context, delayqueue.Message) error { return nil })
	must(err)
	must(worker.Start())
	_, _ = io.Copy(io.Discard, os.Stdin)
	must(lease.Release(context.Background()))
	must(rt.Shutdown(context.Background()))
}

func noTask(context.Context, *asynq.Task) error { return nil }

// Nothing but the section has a process counted and told of, until it ends.
func TestOps_TheSectionTellsOfTheProcess(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		here := build(t, env, operated)
		there := redistest.StartProcess(t, "", processVar+"="+redisOf(env)+operated)
		mux := http.NewServeMux()
		mux.HandleFunc("POST /orders/{id}", func(http.ResponseWriter, *http.Request) {})
		require.Equal(t, http.StatusOK, testbed.Do(httplock.FromConfig(here)(mux), request("POST", "/orders/7")).Status)

		awaitFleet(t, env, func(all map[int]ops.Process) bool {
			a, b := all[os.Getpid()], all[there.Pid()]
			s := a.Snapshot
			return len(all) == 2 && a.ID == here.Locker().ID() && a.Service == "shop" && len(a.Workers) == 0 &&
				s.Config.Version == 1 && s.Config.Hash == here.File().Hash() && b.Snapshot.Config.Hash == s.Config.Hash &&
				len(s.Requests) == 1 && s.Requests[0].Outcomes[httplock.OutcomeRan] == 1 && len(s.Locks) == 1 && s.Locks[0].Calls[core.OutcomeAcquired] == 1 &&
				b.Local.Held == 1 && b.Local.Leases[0].Key == "order:8" &&
				len(b.Workers) == 1 && b.Workers[0].Queue == "ship" && b.Workers[0].Slots == 3 && !b.Workers[0].Stopped
		}, "both processes tell what they do")

		changed := load(t, env, operated+"defaults: {ttl: 20s}\n")
		require.NoError(t, here.Reload(changed))
		awaitFleet(t, env, func(all map[int]ops.Process) bool {
			c := all[os.Getpid()].Snapshot.Config
			return c.Hash == changed.Hash() && c.Version == 2 && all[there.Pid()].Snapshot.Config.Version == 1
		}, "the file that is in force now")

		there.Finish()
		there.Wait(t)
		awaitFleet(t, env, func(all map[int]ops.Process) bool { return len(all) == 1 && all[os.Getpid()].PID != 0 }, "one that ended well is gone")
		require.NoError(t, here.Shutdown(t.Context()))
		awaitFleet(t, env, func(all map[int]ops.Process) bool { return len(all) == 0 }, "nobody is left")
	})
}

// Without the section Redis is told nothing, and nothing counts.
func TestOps_NothingWithoutTheSection(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, "guards: {pay: {}}")
	require.Nil(t, rt.Recorder())
	rt.CountTask("mail", "done")
	release := hold(t, rt, "order:7")
	release()
	require.NoError(t, rt.Close())
	require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix+":ops"))
}

// The user's Recorder is the one that counts, tasks too.
func TestOps_CountsInTheRecorderThatIsGiven(t *testing.T) {
	t.Parallel()
	recorder := ops.NewRecorder()
	rt := build(t, redistest.Embedded(t), `
ops: {}
asynq: {mail: {key: "m:{json.id}"}}
`, config.WithRecorder(recorder))
	require.Same(t, recorder, rt.Recorder())
	mail := asynqlock.FromConfig(rt)(asynq.HandlerFunc(noTask))
	_ = mail.ProcessTask(t.Context(), asynq.NewTask("mail", []byte(`{}`))) // without its key
	tasks := recorder.Snapshot().Tasks
	require.Len(t, tasks, 1)
	require.EqualValues(t, 1, tasks[0].Outcomes["no_key"])

	own := ops.NewRecorder()
	mail = asynqlock.FromConfig(rt, asynqlock.WithRecorder(own))(asynq.HandlerFunc(noTask))
	_ = mail.ProcessTask(t.Context(), asynq.NewTask("mail", []byte(`{}`)))
	require.Len(t, own.Snapshot().Tasks, 1)
	require.Equal(t, tasks, recorder.Snapshot().Tasks)
}

// A Redis that hangs does not keep Close, and then nothing runs any more. For how long at most: TestBeacon_OfARedisThatIsSilent.
func TestOps_CloseLeavesNoGoroutine(t *testing.T) { // not parallel: it counts goroutines
	server := redistest.Start(t)
	env := &redistest.Env{Addr: server.Addr, Real: true, Prefix: "hangs"}
	before := goleak.IgnoreCurrent()
	rt := build(t, env, operated)
	awaitFleet(t, env, func(all map[int]ops.Process) bool { return len(all) == 1 }, "it tells")
	server.Pause()
	defer server.Resume()
	time.Sleep(150 * time.Millisecond) // it tells again meanwhile, and has no answer
	_ = rt.Close()
	goleak.VerifyNone(t, before)
}
