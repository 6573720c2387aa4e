package core_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/mutant"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// copies are calls that are held up on their way to Redis, whose clients send them again meanwhile.
type copies struct {
	mu   sync.Mutex
	held map[string][]byte // by script, key and token
	last int64             // until when one of them may run, in ms by the server's clock
}

// holdUp holds up the first call of each script with a token: its connection breaks, and what was sent comes later.
func (c *copies) holdUp(request []byte) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for command := range strings.SplitSeq(strings.TrimPrefix(strings.TrimSuffix(string(request), "\r\n"), "*"), "\r\n*") {
		lines := strings.Split(command, "\r\n")
		var words []string
		for i := 2; i < len(lines); i += 2 {
			words = append(words, lines[i])
		}
		if len(words) < 7 || lines[0] != strconv.Itoa(len(words)) { // a part of a command
			continue
		}
		keys, _ := strconv.Atoi(words[2])
		for script, at := range map[string]int{"acquire": 2, "acquires": 0, "acquireall": 2, "admit": 2, "reserve": 2} {
			if words[1] != redis.NewScript(core.Scripts[script]).Hash() {
				continue
			}
			calls := []string{words[1] + words[3] + words[3+keys]}
			for i := range keys {
				if script == "acquires" { // of several callers
					calls = append(calls[:i], words[1]+words[3+i]+words[4+keys+4*i])
				}
			}
			for _, call := range calls {
				if c.held[call] == nil {
					c.held[call], first = fmt.Appendf(nil, "*%s\r\n", command), true
				}
			}
			until, _ := strconv.ParseInt(words[3+keys+at], 10, 64)
			c.last = max(c.last, until)
		}
	}
	return first
}

// arrive has the copies run, once they are late.
func (c *copies) arrive(t *testing.T, server *redis.Client) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	redistest.Eventually(t, func() bool { return server.Time(t.Context()).Val().UnixMilli() > c.last }, "late")
	conn, err := net.Dial("tcp", server.Options().Addr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	for _, request := range c.held {
		_, err = conn.Write(request)
		require.NoError(t, err)
	}
	_, err = conn.Write([]byte("PING\r\n"))
	require.NoError(t, err)
	for replies := bufio.NewReader(conn); ; {
		line, err := replies.ReadString('\n')
		require.NoError(t, err)
		if strings.HasPrefix(line, "+PONG") {
			return
		}
	}
}

// taking is a way to take a key, or several.
type taking func(ctx context.Context, l *core.Locker, key string) (release func(context.Context) error, err error)

// insist takes the key when a busy machine is no longer slower than a call waits. What Redis has answered is an error at once.
func (take taking) insist(ctx context.Context, l *core.Locker, key string) (release func(context.Context) error, err error) {
	for release, err = take(ctx, l, key); errors.Is(err, core.ErrUnavailable) && !strings.Contains(err.Error(), "the script's reply has an unknown form"); release, err = take(ctx, l, key) {
		_ = release(ctx)
	}
	return release, err
}

var copied = map[string]taking{
	"exclusive": takes(), "shared": takes(core.Shared()), "counted": takes(core.Counted(3)), "named": takes(core.Named("pay", "7")),
	"waits": func(ctx context.Context, l *core.Locker, key string) (func(context.Context) error, error) {
		lease, err := l.Acquire(ctx, key)
		return lease.Release, err
	},
	"all": func(ctx context.Context, l *core.Locker, key string) (func(context.Context) error, error) {
		all, err := l.TryAcquireAll(ctx, []string{key, key + "+"})
		return all.Release, err
	},
	"reserved": func(ctx context.Context, l *core.Locker, key string) (func(context.Context) error, error) {
		lease, err := l.TryAcquire(ctx, key)
		if err != nil {
			return lease.Release, err
		}
		stamp, err := reservations.Reserve(ctx, l, key, time.Minute)
		return func(ctx context.Context) error {
			return errors.Join(lease.Release(ctx), reservations.Unreserve(ctx, l, key, stamp))
		}, err
	},
}

func takes(opts ...core.AcquireOption) taking {
	return func(ctx context.Context, l *core.Locker, key string) (func(context.Context) error, error) {
		lease, err := l.TryAcquire(ctx, key, opts...)
		return lease.Release, err // the Release of nil does nothing
	}
}

// An acquire is held up on its way; its client sends it again, and the caller uses the key and releases it. Then the first copy comes.
func TestLateCopy_OfAnAcquireGrantsNothing(t *testing.T) {
	t.Parallel()
	for way, take := range copied {
		for _, nodes := range []int{1, 3} {
			if nodes > 1 && way != "exclusive" && way != "waits" {
				continue // each node of a quorum is asked alike
			}
			t.Run(fmt.Sprint(way, "/", nodes), func(t *testing.T) {
				t.Parallel()
				lateCopies(t, nodes, take)
			})
		}
	}
}

func lateCopies(t *testing.T, nodes int, take taking) {
	t.Helper()
	const callers = 12
	var servers []*redis.Client
	var clients []redis.UniversalClient
	var proxies []*redistest.Proxy
	for range nodes {
		s := redistest.Start(t)
		proxies = append(proxies, redistest.NewProxy(t, s.Addr))
		servers = append(servers, redistest.Client(t, &redis.Options{Addr: s.Addr}))
		clients = append(clients, redistest.Client(t, &redis.Options{Addr: proxies[len(proxies)-1].Addr, ReadTimeout: time.Second, MaxRetries: 30}))
	}
	l, err := core.New(clients[0], core.WithPrefix("p"))
	if nodes > 1 {
		l, err = core.NewQuorum(clients, core.WithPrefix("p"))
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	for i, server := range servers {
		redistest.Eventually(t, func() bool { // a quorum may not need this node
			release, err := take(t.Context(), l, fmt.Sprint("warm-up", i))
			return errors.Join(err, release(t.Context())) == nil && (nodes == 1 || strings.Count(server.Info(t.Context(), "commandstats").Val(), "cmdstat_set:calls=") == 1)
		}, "its clock is known")
	}
	for _, server := range servers {
		redistest.Eventually(t, func() bool { return len(redistest.Keys(t, server, "p")) == 0 }, "nothing is held")
	}
	held := make([]*copies, nodes)
	for i, proxy := range proxies {
		held[i] = &copies{held: map[string][]byte{}}
		proxy.LoseRequest(held[i].holdUp)
	}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			release, err := take.insist(t.Context(), l, fmt.Sprint("k", i))
			if assert.NoError(t, err) {
				if err := release(t.Context()); !errors.Is(err, core.ErrUnavailable) { // then it goes on in the background
					assert.NoError(t, err)
				}
			}
		})
	}
	all.Wait()
	for i, proxy := range proxies {
		proxy.LoseRequest(nil)
		require.Greater(t, len(held[i].held), callers/2)
	}
	for i, server := range servers {
		redistest.Eventually(t, func() bool { return len(redistest.Keys(t, server, "p")) == 0 }, "all have released")
		held[i].arrive(t, server)
		require.Empty(t, redistest.Keys(t, server, "p"), "held by a late copy")
	}
}

// Readers are admitted beside the first of them, and use the key while that works on. Then a copy of their admission comes.
func TestLateCopy_OfAnAdmissionAdmitsNobody(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	l, proxy, direct := throughProxy(t, env, 30)
	writing, grants := readersBehind(t, env, newLocker(t, env), l, 3)
	held := &copies{held: map[string][]byte{}}
	proxy.LoseRequest(held.holdUp)
	require.NoError(t, writing.Release(t.Context()))
	reading := []*core.Lease{granted(t, grants), granted(t, grants), granted(t, grants)}
	slices.SortFunc(reading, func(a, b *core.Lease) int { return cmp.Compare(a.Fence(), b.Fence()) })
	require.Len(t, held.held, 1)
	proxy.LoseRequest(nil)
	for _, follower := range reading[1:] {
		require.NoError(t, follower.Release(t.Context()))
	}
	held.arrive(t, direct)
	require.NoError(t, reading[0].Release(t.Context()))
	require.Empty(t, redistest.Keys(t, direct, env.Prefix), "held by a late copy")
}

// What is known of the clock is wrong: a key is reserved all the same, and readers are not put behind a writer that came after them.
func TestLateCopy_ReservationsAndAdmissionsAreMadeAgain(t *testing.T) {
	t.Parallel()
	s := redistest.StartClocked(t)
	env := &redistest.Env{Addr: s.Addr, Prefix: "p"}
	l, writer, idle := newLocker(t, env), newLocker(t, env), newLocker(t, env)
	warm(t, idle) // no later reply tells it the time
	writing, grants := readersBehind(t, env, newLocker(t, env), l, 6)
	second := acquiring(t, writer, "k")
	queued(t, env, "k", 2)
	s.SetClock(t, 4*time.Second)
	require.NoError(t, reserve(t, idle, "r", time.Minute))
	require.Positive(t, reservedFor(t, idle, "r"))
	require.NoError(t, writing.Release(t.Context()))
	for range 6 {
		granted(t, grants)
	}
	waiting(t, second, "readers have the key")
}

// A release that is taken for a late one puts no token into the queue; but one that waits there already is served, here without a message.
func TestLateCopy_AReleaseTakenForOneLosesNoGrant(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	direct := env.Client(t)
	redistest.AddUser(t, direct, aclUser, []string{"~*", "+@all", "resetchannels"})
	rdb := redistest.Client(t, &redis.Options{Addr: env.Addr, Username: aclUser, Password: redistest.Password})
	var late atomic.Int32
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		if isScript(cmd, "release") && len(cmd.Args()) == 13 {
			cmd.Args()[12] = 1
			late.Add(1)
		}
		return next()
	}})
	l := lockerOn(t, rdb, env.Prefix)
	for late.Load() == 0 { // the token does not go along while it asks
		first := acquire(t, l, "k", core.FixedLease(time.Minute))
		next := acquiring(t, l, "k")
		queued(t, env, "k", 1)
		from := direct.Time(t.Context()).Val()
		require.NoError(t, first.Release(t.Context()))
		to := direct.Time(t.Context()).Val()
		lease := granted(t, next)
		if late.Load() > 0 {
			require.True(t, from.UnixMicro() <= lease.Fence() && lease.Fence() <= to.UnixMicro(), "the release has granted it")
		}
		require.NoError(t, lease.Release(t.Context()))
	}
}

// However the clock of Redis is set, a call that comes in time is served: if what was known of the clock is wrong, it is asked again.
func TestLateCopy_NoCallIsTakenForOneAfterTheClockWasSet(t *testing.T) {
	t.Parallel()
	s := redistest.StartClocked(t)
	const lockers, callers = 3, 4
	round, over := make(chan struct{}), make(chan struct{})
	var all, pairs sync.WaitGroup
	for i := range lockers {
		l := lockerOn(t, redistest.Client(t, &redis.Options{Addr: s.Addr}), "p")
		for j := range callers {
			all.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-round:
					case <-over:
						return
					}
					for way, take := range copied {
						release, err := take.insist(t.Context(), l, fmt.Sprint(i, j, n, way))
						if assert.NoError(t, err) {
							_ = release(t.Context()) // the lease is over if the clock is set forward now
						}
					}
					pairs.Done()
				}
			})
		}
	}
	for _, ahead := range []time.Duration{0, time.Hour, time.Minute, time.Minute + 5*time.Second, -time.Hour, 0, 24 * time.Hour, -24 * time.Hour} {
		s.SetClock(t, ahead)
		for range 2 {
			pairs.Add(lockers * callers)
			for range lockers * callers {
				round <- struct{}{}
			}
			pairs.Wait()
		}
	}
	close(over)
	all.Wait()
}

func TestLateCopy_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	mutant.Catch(t, []mutant.Mutant{
		{Name: "what came late is not asked again", File: "internal/store/acquire.go", Old: "if r.late() {\n\t\treturn d.Acquire(", New: "if r.late() && !%s {\n\t\treturn d.Acquire(", Tests: "^TestLateCopy_NoCallIs"},
		{Name: "nor several keys", File: "internal/store/acquire.go", Old: "if r.late() {\n\t\treturn d.AcquireAll(", New: "if r.late() && !%s {\n\t\treturn d.AcquireAll(", Tests: "^TestLateCopy_NoCallIs"},
		{Name: "there is no bound", File: "internal/store/bound.go", Old: "at != 0 && b.wait != 0", New: "at != 0 && b.wait != 0 && !%s", Tests: "^TestLateCopy_OfAn/^(named|all)$"},
		{Name: "an admission has no bound", File: "internal/store/acquire.go", Old: "followers, done, false)", New: "followers, done, %s)", Tests: "^TestLateCopy_OfAnAdmission"},
		{Name: "nor a reservation", File: "internal/store/inspect.go", Old: "wait: d.replyWithin}", New: "wait: map[bool]time.Duration{false: d.replyWithin}[%s]}", Tests: "^TestLateCopy_OfAnAcquireGrantsNothing/^reserved"},
		{Name: "a late admission is not made again", File: "internal/store/acquire.go", Old: "if r.late() {\n\t\t\td.admit", New: "if r.late() && !%s {\n\t\t\td.admit", Tests: "^TestLateCopy_Reserv"},
		{Name: "nor a late reservation", File: "internal/store/inspect.go", Old: "if val != nil && (result", New: "if val != nil && !%s && (result", Tests: "^TestLateCopy_Reserv"},
		{Name: "the clock is never known", File: "internal/store/bound.go", Old: "if ms == 0 ||", New: "if ms == 0 || %s ||", Tests: "^TestLateCopy_OfAn/^exclusive$"},
	}, "")
}
