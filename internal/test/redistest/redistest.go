// Package redistest gives tests a Redis: the embedded one, or a real
// redis-server process on a free loopback port with a directory of its own.
package redistest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/perkey-go/perkey/internal/test/embedded"
)

// RequireVar is an environment variable that, set to 1, makes a missing redis-server a failure, not a skip.
const RequireVar = "PERKEY_REQUIRE_REDIS"

// ChoiceVar is an environment variable that says on which Redis Each runs a test: on a real one if there is one (when it is
// not set), on the embedded one, "embedded", and then what needs a real one is skipped, or on "both".
const ChoiceVar = "PERKEY_TEST_REDIS"

// Main is the body of TestMain: it runs the tests, says which Redis they used, and fails if a goroutine is left. Each
// of after is called when the tests have ended, and an error of it makes them fail.
func Main(m *testing.M, after ...func() error) {
	path, version := find()
	switch choice := os.Getenv(ChoiceVar); {
	case choice != "" && choice != "embedded" && choice != "both":
		fmt.Printf("redistest: %s=%s: want embedded or both\n", ChoiceVar, choice)
		os.Exit(2)
	case choice == "embedded" || path == "":
		fmt.Println("redistest: embedded Redis only")
	default:
		fmt.Printf("redistest: embedded Redis and %s (%s)\n", version, path)
	}
	code := m.Run()
	stopShared()
	for _, end := range after {
		if err := end(); err != nil {
			fmt.Println("FAIL:", err)
			code = 1
		}
	}
	if code == 0 {
		// After dials that failed, go-redis looks once a second whether its pool was
		// closed: its goroutine ends by itself, but later than goleak waits.
		err := leftGoroutines()
		for end := time.Now().Add(15 * time.Second); err != nil && time.Now().Before(end); {
			err = leftGoroutines()
		}
		if err != nil {
			fmt.Println("redistest: goroutines were left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leftGoroutines is nil if no goroutine of a test is left. go-redis's Sentinel client, closed while it dials, subscribes
// afterwards, and nothing ends that subscription: it is no mistake of a test.
func leftGoroutines() error {
	const goRedis = "github.com/redis/go-redis/v9."
	err := goleak.Find()
	if err != nil && strings.Contains(err.Error(), goRedis+"(*sentinelFailover).setSentinel") {
		return goleak.Find(goleak.IgnoreAnyFunction(goRedis+"(*sentinelFailover).listen"),
			goleak.IgnoreAnyFunction(goRedis+"(*channel).initHealthCheck.func1"), goleak.IgnoreAnyFunction(goRedis+"(*channel).initMsgChan.func1"))
	}
	return err
}

// Env is a Redis for one test.
type Env struct {
	Addr string
	// Real tells a redis-server from the embedded one.
	Real bool
	// Prefix is this test's own: a shared server keeps tests apart by it.
	Prefix string

	embedded *embedded.Server
	dial     func(ctx context.Context, network, addr string) (net.Conn, error) // nil: by Addr
	silent   *atomic.Bool                                                      // of a bubble
}

// Each runs test on the Redis of this run, or on both (see ChoiceVar), in parallel with other tests: it calls t.Parallel.
func Each(t *testing.T, test func(t *testing.T, env *Env)) {
	t.Helper()
	t.Parallel()
	EachAlone(t, test)
}

// EachAlone is Each for a test that no other may disturb: it measures, or changes
// what the process's tests share. Two Redises still run in parallel.
func EachAlone(t *testing.T, test func(t *testing.T, env *Env)) {
	t.Helper()
	choice := os.Getenv(ChoiceVar)
	if path, _ := find(); choice == "" && path == "" && os.Getenv(RequireVar) != "1" {
		choice = "embedded"
	}
	if choice != "" {
		t.Run("embedded", func(t *testing.T) {
			t.Parallel()
			test(t, Embedded(t))
		})
	}
	if choice != "embedded" {
		t.Run("real", func(t *testing.T) {
			t.Parallel()
			test(t, Real(t))
		})
	}
}

var busy = make(chan struct{}, runtime.GOMAXPROCS(0))

// Busy is for what keeps a processor busy for a while: it waits until fewer tests of this
// binary do so than there are processors. The caller calls done at the end.
func Busy() (done func()) {
	busy <- struct{}{}
	return func() { <-busy }
}

// Embedded starts an embedded Redis that ends with the test.
func Embedded(t testing.TB) *Env {
	t.Helper()
	server, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return &Env{Addr: server.Addr(), Prefix: prefix(), embedded: server}
}

// Real returns the redis-server that this test binary's tests share.
func Real(t testing.TB) *Env {
	t.Helper()
	RequireServer(t)
	server, err := sharedServer()
	require.NoError(t, err)
	return &Env{Addr: server.Addr, Real: true, Prefix: prefix()}
}

// Commands is how many commands an embedded Redis has run, those of scripts
// included. A real one is shared, and answers zero.
func (e *Env) Commands() int {
	if e.embedded == nil {
		return 0
	}
	return e.embedded.CommandCount()
}

// Client returns a go-redis client that is closed with the test.
func (e *Env) Client(t testing.TB) *redis.Client {
	t.Helper()
	if e.dial != nil {
		return Client(t, virtual(e.dial))
	}
	return Client(t, &redis.Options{Addr: e.Addr})
}

// Client returns a go-redis client that is closed with the test.
func Client(t testing.TB, opt *redis.Options) *redis.Client {
	t.Helper()
	if opt.ReadBufferSize == 0 && opt.WriteBufferSize == 0 {
		small := *opt // tests have thousands of connections, with little to say
		small.ReadBufferSize, small.WriteBufferSize = 4<<10, 4<<10
		opt = &small
	}
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// OnePool has pipelines use the pool of the other commands too, which a go-redis that is new enough would give one of their own.
func OnePool(opt *redis.Options) *redis.Options {
	if field := reflect.ValueOf(opt).Elem().FieldByName("PipelinePoolSize"); field.IsValid() {
		field.SetInt(-1)
	}
	return opt
}

// Keys lists the names in Redis that begin with prefix.
func Keys(t testing.TB, rdb redis.UniversalClient, prefix string) []string {
	t.Helper()
	var keys []string
	iter := rdb.Scan(context.Background(), 0, prefix+"*", 1000).Iterator()
	for iter.Next(context.Background()) {
		keys = append(keys, iter.Val())
	}
	require.NoError(t, iter.Err())
	return keys
}

// Eventually waits until ok, for so long that a busy machine is no reason to fail. It asks less often the
// longer it waits: others use this machine too.
func Eventually(t testing.TB, ok func() bool, what string) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(min(time.Millisecond+time.Since(start)/20, 50*time.Millisecond)) {
		if time.Since(start) > 2*time.Minute {
			require.Fail(t, "not within 2 minutes: "+what)
		}
	}
}

func prefix() string { return "t" + rand.Text()[:12] }

var find = sync.OnceValues(func() (path, version string) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", ""
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "", ""
	}
	// Redis server v=7.0.15 sha=...
	for word := range strings.FieldsSeq(string(out)) {
		if v, ok := strings.CutPrefix(word, "v="); ok {
			return path, "redis-server " + v
		}
	}
	return path, "redis-server"
})

// isVersion reports whether the version of redis-server begins so.
func isVersion(prefix string) bool {
	_, version := find()
	return strings.HasPrefix(version, "redis-server "+prefix)
}

// RequireServer skips a test that needs a real Redis if there is none, or this run is not for one.
func RequireServer(t testing.TB) {
	t.Helper()
	if os.Getenv(ChoiceVar) == "embedded" {
		t.Skipf("redistest: %s=embedded", ChoiceVar)
	}
	if path, _ := find(); path != "" {
		return
	}
	if os.Getenv(RequireVar) == "1" {
		t.Fatalf("redistest: no redis-server on PATH, and %s=1 asks for one", RequireVar)
	}
	t.Skip("redistest: no redis-server on PATH")
}
