package ops_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

const soon = 100 * time.Millisecond

func startBeacon(t testing.TB, rdb redis.UniversalClient, r *ops.Recorder, l *core.Locker, opts ...ops.BeaconOption) *ops.Beacon {
	t.Helper()
	b, err := ops.StartBeacon(rdb, r, l, append([]ops.BeaconOption{ops.WithInterval(soon)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func readFleet(t testing.TB, rdb redis.UniversalClient, prefix string) ops.Fleet {
	t.Helper()
	f, err := ops.ReadFleet(t.Context(), rdb, prefix)
	require.NoError(t, err)
	return f
}

// tells waits until the only process of a fleet has told something.
func tells(t testing.TB, env *redistest.Env, ok func(ops.Process) bool, what string) (p ops.Process) {
	t.Helper()
	rdb := env.Client(t)
	redistest.Eventually(t, func() bool {
		f := readFleet(t, rdb, env.Prefix)
		if len(f.Processes) != 1 {
			return false
		}
		p = f.Processes[0]
		return ok(p)
	}, what)
	return p
}

// TestBeacon_TellsOfItsProcess is long since a report has many fields.
func TestBeacon_TellsOfItsProcess(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, recorder := t.Context(), ops.NewRecorder()
		locker, another := newLocker(t, env, core.WithObserver(recorder.Locks(nil))), newLocker(t, env)
		queue := testbed.NewQueue(t, env.Client(t), "ship", delayqueue.WithPrefix(env.Prefix), delayqueue.WithQueueObserver(recorder.Queues(nil)))
		worker, err := delayqueue.NewWorker(queue, locker, func(ctx context.Context, _ delayqueue.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}, delayqueue.WithConcurrency(3))
		require.NoError(t, err)
		require.NoError(t, worker.Start())
		stop, cancel := context.WithCancel(ctx)
		cancel()
		defer func() { _ = worker.Stop(stop) }()
		_, err = queue.Enqueue(ctx, delayqueue.Job{Key: "parked"})
		require.NoError(t, err)

		odd := "<b>\xff\xfe \u2028 ключ"
		first, err := locker.TryAcquire(ctx, odd, core.Named("name", "id"))
		require.NoError(t, err)
		waits := make(chan error, 1)
		go func() {
			waits <- another.Do(ctx, odd, func(context.Context) error { return nil }, core.Named("waits", "7"))
		}()
		_, err = locker.TryAcquire(ctx, odd, core.Named("name", "second"))
		require.ErrorIs(t, err, core.ErrConflict)

		beacon := startBeacon(t, env.Client(t), recorder, locker, ops.WithLockers(another), ops.WithWorkers(worker), ops.WithService("orders"))
		p := tells(t, env, func(p ops.Process) bool {
			return p.Local.Held == 2 && len(p.Local.Waits) == 1 && len(p.Workers) == 1 && p.Workers[0].Running == 1 && len(p.Snapshot.Queues) == 1
		}, "all of it is told")
		host, _ := os.Hostname()
		assert.Equal(t, locker.ID(), p.ID)
		assert.Equal(t, []string{locker.ID(), another.ID()}, p.Lockers)
		assert.Equal(t, host, p.Host)
		assert.Equal(t, os.Getpid(), p.PID)
		assert.Equal(t, "orders", p.Service)
		assert.NotEmpty(t, p.Go)
		assert.NotEmpty(t, p.Version)
		assert.Less(t, p.Age, p.TTL)
		assert.Equal(t, 350*time.Millisecond, p.TTL)
		assert.Zero(t, p.Cut)
		info, err := locker.Inspect(ctx, odd)
		require.NoError(t, err)
		assert.Equal(t, info.Holders[0].Locker, p.ID, "a holder joins its process")

		lease := p.Local.Leases[1]
		if lease.Key != odd {
			lease = p.Local.Leases[0]
		}
		assert.Equal(t, odd, lease.Key)
		assert.Equal(t, "name", lease.Name)
		assert.Equal(t, first.Fence(), lease.Fence)
		assert.Equal(t, core.ModeExclusive, lease.Mode)
		assert.Equal(t, 15*time.Second, lease.TTL)
		assert.Positive(t, lease.Held)
		assert.Positive(t, lease.Remaining)
		wait := p.Local.Waits[0]
		assert.Equal(t, [3]string{odd, "waits", "7"}, [3]string{wait.Key, wait.Name, wait.ID})
		assert.Positive(t, wait.Waited)
		stats := lockStats(t, p.Snapshot, "name")
		assert.Equal(t, int64(1), stats.Calls[core.OutcomeAcquired])
		assert.Equal(t, int64(1), stats.Calls[core.OutcomeConflict])
		assert.Equal(t, odd, p.Snapshot.Conflicts[0].Key)
		assert.Equal(t, int64(1), p.Snapshot.Queues[0].Enqueued[delayqueue.EnqueueStored])
		assert.Equal(t, "ship", p.Workers[0].Queue)
		assert.Equal(t, 3, p.Workers[0].Slots)
		assert.WithinDuration(t, time.Now(), p.Workers[0].LastClaim, time.Minute)

		require.NoError(t, first.Release(ctx))
		require.NoError(t, <-waits)
		require.NoError(t, beacon.Close())
		require.NoError(t, beacon.Close())
		assert.Empty(t, readFleet(t, env.Client(t), env.Prefix).Processes, "it has told that it ends")
	})
}

// What is too much for an entry is left out from the ends of its lists.
func TestBeacon_LeavesOutWhatIsNotHot(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, recorder := t.Context(), ops.NewRecorder()
		observer := recorder.Locks(nil)
		locker := newLocker(t, env, core.WithObserver(observer))
		long := func(i int) string { return fmt.Sprintf("%03d\xff", i) + strings.Repeat("<", core.MaxKeyLen-4) }
		for i := range 64 {
			for range 100 - i {
				observer.OnOutcome(ctx, core.Outcome{Kind: core.OutcomeShed, Key: long(i), Name: fmt.Sprintf("%02d-%s", i, strings.Repeat("n", 97)), ID: long(i)})
			}
		}
		for i := range 40 {
			_, err := locker.TryAcquire(ctx, long(i))
			require.NoError(t, err)
		}
		startBeacon(t, env.Client(t), recorder, locker, ops.WithInterval(time.Second)) // its entry stays for longer
		p := tells(t, env, func(p ops.Process) bool { return p.Local.Held == 40 }, "it is told")
		keys := redistest.Keys(t, env.Client(t), env.Prefix+":ops:{fleet}:process:")
		require.Len(t, keys, 1)
		size := env.Client(t).StrLen(ctx, keys[0]).Val()
		assert.Less(t, size, int64(16<<10))
		assert.Greater(t, size, int64(14<<10), "there is no more room")
		assert.Equal(t, 65-len(p.Snapshot.Locks)+32-len(p.Local.Leases)+64-len(p.Snapshot.Conflicts)+64-len(p.Snapshot.Events), p.Cut)
		require.NotEmpty(t, p.Snapshot.Conflicts)
		for i, hot := range p.Snapshot.Conflicts {
			assert.Equal(t, long(i), hot.Key)
		}
		for i, lease := range p.Local.Leases {
			assert.Equal(t, long(i), lease.Key)
		}
		names := map[string]bool{}
		for _, stats := range p.Snapshot.Locks {
			names[stats.Name] = true
		}
		assert.True(t, names["00-"+strings.Repeat("n", 97)], "the name with most calls")
		assert.False(t, names["63-"+strings.Repeat("n", 97)])
	})
}

// counted is a connection that counts commands, as they are sent.
type counted struct {
	net.Conn
	calls map[string]*atomic.Int64
}

func (c counted) Write(sent []byte) (int, error) {
	for command, n := range c.calls {
		n.Add(int64(bytes.Count(sent, []byte("\r\n"+command+"\r\n"))))
	}
	return c.Conn.Write(sent)
}

func countedClient(t *testing.T, env *redistest.Env, calls map[string]*atomic.Int64) *redis.Client {
	t.Helper()
	opt := *env.Client(t).Options()
	dial := opt.Dialer
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return counted{conn, calls}, err
	}
	return redistest.Client(t, &opt)
}

// Each process reports about every ten seconds, by one call, and the fleet is read by one more for each: nothing is searched for.
func TestBeacon_CostsOneCallInTenSeconds(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		const processes = 5
		calls := map[string]*atomic.Int64{"evalsha": {}, "getrange": {}, "scan": {}, "keys": {}}
		rdb := countedClient(t, env, calls)
		for range processes {
			startBeacon(t, rdb, ops.NewRecorder(), newLocker(t, env), ops.WithInterval(10*time.Second))
		}
		time.Sleep(2 * time.Minute)
		assert.InDelta(t, 12*processes, calls["evalsha"].Load(), 2*processes)

		fleet := readFleet(t, rdb, env.Prefix)
		require.Len(t, fleet.Processes, processes)
		assert.EqualValues(t, processes, calls["getrange"].Load())
		assert.Zero(t, calls["scan"].Load()+calls["keys"].Load())
	})
}

func TestBeacon_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = rdb.Close() }()
	locker := testbed.NewLocker(t, rdb)
	recorder := ops.NewRecorder()
	many := make([]*core.Locker, 16)
	for i := range many {
		many[i] = locker
	}
	var none *redis.Client
	refused := func(name string, rdb redis.UniversalClient, r *ops.Recorder, l *core.Locker, opts ...ops.BeaconOption) {
		b, err := ops.StartBeacon(rdb, r, l, opts...)
		assert.ErrorIs(t, err, core.ErrInvalidOption, name)
		assert.Nil(t, b, name)
	}
	refused("no client", none, recorder, locker)
	refused("no recorder", rdb, nil, locker)
	refused("no locker", rdb, recorder, nil)
	for name, opt := range map[string]ops.BeaconOption{
		"a nil option": nil, "a nil worker": ops.WithWorkers(nil), "a nil locker": ops.WithLockers(nil), "too many lockers": ops.WithLockers(many...),
		"too often": ops.WithInterval(time.Millisecond), "too seldom": ops.WithInterval(time.Hour),
		"no logger": ops.WithLogger(nil), "no service": ops.WithService(""), "a service of junk": ops.WithService("\xff"),
	} {
		refused(name, rdb, recorder, locker, opt)
	}
	_, err := ops.ReadFleet(t.Context(), none, "")
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = ops.ReadFleet(t.Context(), rdb, "a b")
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = ops.ReadFleet(t.Context(), rdb, "")
	require.ErrorIs(t, err, core.ErrUnavailable)
}

func TestBeacon_ARedisThatIsAwayCostsACallPerTick(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		proxy := redistest.NewProxy(t, env.Addr)
		rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr})
		log := &testbed.Log{}
		locker := newLocker(t, env)
		startBeacon(t, rdb, ops.NewRecorder(), locker, ops.WithLogger(log.Logger()))
		tells(t, env, func(ops.Process) bool { return true }, "it is told")
		proxy.Refuse(true)
		before, start := proxy.Accepted(), time.Now()
		redistest.Eventually(t, func() bool { return proxy.Accepted() >= before+5 }, "it tries again")
		assert.LessOrEqual(t, proxy.Accepted()-before, int64(time.Since(start)/(soon*9/10))+2, "one call per tick, with a connection of its own")
		assert.Empty(t, readFleet(t, env.Client(t), env.Prefix).Processes)
		proxy.Refuse(false)
		tells(t, env, func(ops.Process) bool { return true }, "it is told again")
		redistest.Eventually(t, func() bool { return strings.Count(log.String(), "\n") == 2 }, "both changes are logged, once")
		assert.Regexp(t, "cannot report.*\n.*reports to Redis again", log)
	})
}

func TestBeacon_OfARedisThatIsSilent(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		calls := map[string]*atomic.Int64{"evalsha": {}}
		beacon := startBeacon(t, countedClient(t, env, calls), ops.NewRecorder(), newLocker(t, env))
		tells(t, env, func(ops.Process) bool { return true }, "it is told")
		env.FallSilent()
		before := calls["evalsha"].Load()
		time.Sleep(10 * soon)
		assert.LessOrEqual(t, calls["evalsha"].Load()-before, int64(1), "calls under way")
		start := time.Now()
		_ = beacon.Close()
		assert.LessOrEqual(t, time.Since(start), 2*time.Second)
	})
}

// processVar makes this test binary a process with a Beacon: "addr prefix".
const processVar = "PERKEY_TEST_PROCESS"

// runProcess holds a key that is named for its pid, until its standard input ends.
func runProcess() {
	var addr, prefix string
	_, _ = fmt.Sscan(os.Getenv(processVar), &addr, &prefix)
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	recorder := ops.NewRecorder()
	locker, err := core.New(rdb, core.WithPrefix(prefix), core.WithObserver(recorder.Locks(nil)))
	if err != nil {
		panic(err)
	}
	if _, err := locker.Acquire(context.Background(), fmt.Sprint(os.Getpid())); err != nil {
		panic(err)
	}
	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithInterval(2*soon))
	if err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	_, _ = beacon.Close(), locker.Close()
}

// A process that is killed is gone when its time is over, and one that ends well at once.
func TestBeacon_OfProcessesThatEnd(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		var processes []*redistest.Process
		for range 3 {
			processes = append(processes, redistest.StartProcess(t, "", processVar+"="+env.Addr+" "+env.Prefix))
		}
		pids := func(f ops.Fleet) (pids []int) {
			for _, p := range f.Processes {
				pids = append(pids, p.PID)
			}
			return pids
		}
		var fleet ops.Fleet
		redistest.Eventually(t, func() bool { fleet = readFleet(t, rdb, env.Prefix); return len(fleet.Processes) == 3 }, "three are seen")
		assert.ElementsMatch(t, []int{processes[0].Pid(), processes[1].Pid(), processes[2].Pid()}, pids(fleet))
		oldest := fleet.OldestLeases(10)
		require.Len(t, oldest, 3)
		for _, lease := range oldest {
			for _, p := range fleet.Processes {
				if p.ID == lease.Process {
					assert.Equal(t, fmt.Sprint(p.PID), lease.Key)
				}
			}
		}

		processes[0].Kill()
		processes[1].Finish()
		processes[1].Wait(t)
		redistest.Eventually(t, func() bool { fleet = readFleet(t, rdb, env.Prefix); return len(fleet.Processes) == 1 }, "one is left")
		assert.Equal(t, []int{processes[2].Pid()}, pids(fleet))
		redistest.Eventually(t, func() bool {
			return rdb.ZCard(t.Context(), env.Prefix+":ops:{fleet}:processes").Val() == 1
		}, "the index forgets those that are gone")
	})
}

// as is the client of a user that admin has added.
func as(t *testing.T, admin *redis.Client, user string) *redis.Client {
	t.Helper()
	return redistest.Client(t, &redis.Options{Addr: admin.Options().Addr, Username: user, Password: redistest.Password})
}

// Each use is made with the rights that docs/operations.md prints for it, which are all that it needs.
func TestACL_TheSmallestRightsToTellAndToRead(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	tellAndWatch(t, admin, func(user string) redis.UniversalClient { return as(t, admin, user) })
	for _, use := range usesOfOps {
		redistest.RequireUsed(t, admin, redistest.Rights(t, use), map[string]string{
			"ping": "a subscription that is idle for seconds", "zscore": "as many watches as there may be",
		})
	}
}

func TestACL_TheSmallestRightsToTellAndToReadOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	tellAndWatch(t, c.Client(t), func(user string) redis.UniversalClient {
		return c.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = user, redistest.Password })
	}, "on a Cluster")
}

// usesOfOps are what docs/operations.md calls the uses, by the user that has their rights.
var usesOfOps = map[string]string{"teller": "a Beacon", "reader": "ops.ReadFleet", "watcher": "ops.Watch"}

// tellAndWatch does all that there is, as a user for each use.
func tellAndWatch(t *testing.T, admin redis.UniversalClient, client func(user string) redis.UniversalClient, more ...string) {
	t.Helper()
	for user, use := range usesOfOps {
		redistest.AddUser(t, admin, user, redistest.Rights(t, append(more, use)...))
	}
	recorder := ops.NewRecorder()
	observer := recorder.Locks(nil)
	locker := testbed.NewLocker(t, admin)
	beacon := startBeacon(t, client("teller"), recorder, locker)
	reader := client("reader")
	redistest.Eventually(t, func() bool { return len(readFleet(t, reader, "").Processes) == 1 }, "it is told")
	w := startWatch(t, client("watcher"), "", ops.Watched{Key: "k"})
	redistest.Eventually(t, func() bool { return recorder.Watches() == 1 }, "it is watched")
	observer.OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeAcquired, Key: "k"})
	observer.OnLost(t.Context(), core.Lost{Kind: core.LossForced, Key: "k"})
	seenBy(t, w, func(e ops.Event) bool { return e.Kind == string(core.LossForced) })
	w.Close()
	redistest.Eventually(t, func() bool { return recorder.Watches() == 0 }, "it is forgotten")
	require.NoError(t, beacon.Close())
	require.Empty(t, readFleet(t, reader, "").Processes)
	require.Empty(t, redistest.Denied(t, admin), "nothing more was asked for")
}

// What may not be read is an error, and no damage.
func TestReadFleet_WithoutTheRightToReadEntries(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := slices.DeleteFunc(redistest.Rights(t, "ops.ReadFleet"), func(right string) bool { return right == "+getrange" })
	redistest.AddUser(t, admin, "reader", rights)
	putEntry(t, admin, "perkey", "good", `{"id":"good","ttl":60000}`)
	_, err := ops.ReadFleet(t.Context(), as(t, admin, "reader"), "")
	require.ErrorIs(t, err, core.ErrUnavailable)
	require.ErrorContains(t, err, "NOPERM")
}

// A process that may not publish still tells of itself.
func TestACL_ABeaconThatMayNotPublishTells(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := slices.DeleteFunc(redistest.Rights(t, "a Beacon"), func(right string) bool { return right == "+publish" })
	redistest.AddUser(t, admin, "mute", rights)
	rdb := as(t, admin, "mute")
	recorder := ops.NewRecorder()
	locker := testbed.NewLocker(t, admin)
	startBeacon(t, rdb, recorder, locker)
	startWatch(t, admin, "", ops.Watched{Key: "k"})
	redistest.Eventually(t, func() bool { return recorder.Watches() == 1 }, "it is watched")
	recorder.Locks(nil).OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeAcquired, Key: "k"})
	redistest.Eventually(t, func() bool { return len(redistest.Denied(t, admin)) > 0 }, "it is denied")
	_, err := locker.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	tells(t, &redistest.Env{Addr: admin.Options().Addr}, func(p ops.Process) bool { return p.Local.Held == 1 }, "it goes on")
}

func TestMain(m *testing.M) {
	if os.Getenv(processVar) != "" {
		runProcess()
		return
	}
	redistest.Main(m)
}
