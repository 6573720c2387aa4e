package listener_test

import (
	"context"
	"net"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/listener"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestListener_ASubscriptionThatIsCutComesBackAndSaysSo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		proxy := redistest.NewProxy(t, env.Addr)
		direct := env.Client(t)
		through := *env
		through.Addr = proxy.Addr
		var ups atomic.Int64
		messages := make(chan string, 10)
		l := listener.New(through.Client(t), env.Prefix, func() { ups.Add(1) }, nil, func(payload string) { messages <- payload })
		defer l.Close()
		require.False(t, l.Up())
		l.Start()
		l.Start()
		for round := range int64(3) {
			redistest.Eventually(t, func() bool { return ups.Load() == round+1 && l.Up() }, "a subscription")
			require.NoError(t, direct.Publish(t.Context(), env.Prefix, "word").Err())
			require.Equal(t, "word", <-messages)
			proxy.Cut()
		}
	})
}

func TestClose_EndsAListenerInEveryState(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	nobody := func() {}
	l := listener.New(env.Client(t), "c", nobody, nil, nil)
	l.Close() // before Start
	l.Close()
	l.Start()
	require.False(t, l.Up())

	l = listener.New(env.Client(t), "c", nobody, nil, nil)
	l.Start()
	redistest.Eventually(t, l.Up, "a subscription")
	l.Close()
	require.False(t, l.Up())

	down := *env
	down.Addr = "127.0.0.1:1"
	l = listener.New(down.Client(t), "c", nobody, nil, nil)
	l.Start()
	l.Close()
}

func TestListener_ASubscriptionThatCannotBeMadeIsToldOfOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		proxy := redistest.NewProxy(t, env.Addr)
		through := *env
		through.Addr = proxy.Addr
		ups, downs := make(chan struct{}, 10), make(chan error, 10)
		l := listener.New(through.Client(t), env.Prefix, func() { ups <- struct{}{} }, func(err error) { downs <- err }, nil)
		defer l.Close()
		l.Start()
		for range 2 {
			<-ups
			require.Empty(t, downs)
			proxy.Refuse(true)
			require.Error(t, <-downs)
			time.Sleep(300 * time.Millisecond) // some more tries
			require.Empty(t, downs)
			proxy.Refuse(false)
		}
		<-ups
	})
}

// A primary that is cut off from the others goes on to answer its clients.
func TestListener_ASubscriptionFollowsEachFailoverOfSentinels(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	rdb := s.AppClient(t)
	var ups atomic.Int64
	messages := make(chan string, 10)
	const several = 3
	var listeners []*listener.Listener
	for range several { // on one channel
		l := listener.New(rdb, "c", func() { ups.Add(1) }, nil, func(payload string) { messages <- payload })
		t.Cleanup(l.Close)
		l.Start()
		listeners = append(listeners, l)
	}
	for round := range int64(2) {
		redistest.Eventually(t, func() bool { return ups.Load() == several*(round+1) }, "subscriptions")
		for _, l := range listeners {
			require.True(t, l.Up())
		}
		require.EqualValues(t, several, rdb.Publish(t.Context(), "c", "word").Val())
		for range several {
			require.Equal(t, "word", <-messages)
		}
		time.Sleep(1500 * time.Millisecond) // checked
		require.Empty(t, messages, "what they check with is no message")
		require.Equal(t, several*(round+1), ups.Load())
		_, heal := s.Isolate(t, func() {})
		redistest.Eventually(t, func() bool { return ups.Load() == several*(round+2) }, "subscriptions to the new primary")
		heal()
	}
}

// The primary becomes a replica of another server, where the client's commands go from then on,
// and later a server of its own.
func TestListener_ASubscriptionThatStaysBehind(t *testing.T) {
	t.Parallel()
	old, primary := redistest.Start(t, "--repl-diskless-sync-delay", "0"), redistest.Start(t, "--repl-diskless-sync-delay", "0")
	var subscription, commands atomic.Value
	subscription.Store(old.Addr)
	commands.Store(old.Addr)
	rdb := redistest.Client(t, &redis.Options{Addr: old.Addr, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		to := &commands
		if strings.Contains(string(debug.Stack()), "(*PubSub)") {
			to = &subscription
		}
		return (&net.Dialer{}).DialContext(ctx, network, to.Load().(string))
	}})
	var ups atomic.Int64
	messages := make(chan string, 10)
	l := listener.New(rdb, "c", func() { ups.Add(1) }, nil, func(payload string) { messages <- payload })
	t.Cleanup(l.Close)
	l.Start()
	redistest.Eventually(t, func() bool { return ups.Load() == 1 }, "a subscription") // what is said last
	require.True(t, l.Up())
	require.True(t, l.Counted())
	word := func() {
		t.Helper()
		require.NoError(t, rdb.Publish(t.Context(), "c", "word").Err())
		require.Equal(t, "word", <-messages)
	}
	word()

	admin := redistest.Client(t, &redis.Options{Addr: old.Addr})
	host, port, err := net.SplitHostPort(primary.Addr)
	require.NoError(t, err)
	commands.Store(primary.Addr)
	require.NoError(t, admin.Do(t.Context(), "replicaof", host, port).Err())
	require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
	redistest.Eventually(t, func() bool { return !l.Counted() && ups.Load() == 2 }, "word that nobody is counted")
	require.True(t, l.Up())
	word()

	subscription.Store(primary.Addr)
	require.NoError(t, admin.Do(t.Context(), "replicaof", "no", "one").Err())
	redistest.Eventually(t, func() bool { return l.Counted() && ups.Load() == 3 }, "a subscription to the primary")
	word()
}
