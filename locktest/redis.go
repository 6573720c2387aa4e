package locktest

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
)

// TB is what this package needs of a test: *testing.T, *testing.B and *testing.F implement it. Like
// those, it is for the test's own goroutine.
type TB interface {
	Helper()
	Cleanup(f func())
	Fatalf(format string, args ...any)
}

// waitTimeout is how long this package waits for what must come.
var waitTimeout = 10 * time.Second

// Redis is a Redis for a test, together with a rival that takes keys there. It is safe for
// concurrent use; give each method the TB of the test or subtest that calls it.
//
// The zero Redis is not useful: use New or On.
type Redis struct {
	rdb    redis.UniversalClient
	prefix string
	other  *core.Locker // somebody else
	addr   string
	sim    *simulation // of an embedded Redis
}

// Option configures a Redis.
type Option func(*Redis)

// WithPrefix sets the prefix under which this Redis holds and checks keys: the one that the service
// under test gives to core.WithPrefix. Default "perkey".
func WithPrefix(prefix string) Option { return func(r *Redis) { r.prefix = prefix } }

// New starts a Redis in this process, which stops when the test ends.
func New(t TB, opts ...Option) *Redis {
	t.Helper()
	server, err := embedded.Start()
	if err != nil {
		t.Fatalf("locktest: %v", err)
	}
	t.Cleanup(server.Close)
	sim := simulate(server)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	r := On(t, rdb, opts...)
	r.addr, r.sim = server.Addr(), sim
	return r
}

// On returns a Redis over rdb, which the caller closes, after the test. Tests that run there at the
// same time need different keys or prefixes.
func On(t TB, rdb redis.UniversalClient, opts ...Option) *Redis {
	t.Helper()
	r := &Redis{rdb: rdb, prefix: "perkey"}
	for _, opt := range opts {
		if opt == nil {
			t.Fatalf("locktest: an option is nil")
		}
		opt(r)
	}
	r.other = r.Locker(t)
	return r
}

// Client returns a client of the Redis, which is closed with the test.
func (r *Redis) Client() redis.UniversalClient { return r.rdb }

// Addr returns the address of a Redis of New, for services that make their own client. It is empty
// for a Redis of On.
func (r *Redis) Addr() string { return r.addr }

// Locker returns a new Locker on this Redis, under its prefix, which is closed with the
// test. Each is like another replica of the service. With a short core.WithTTL an expired
// lease is noticed earlier.
func (r *Redis) Locker(t TB, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(r.rdb, append([]core.Option{core.WithPrefix(r.prefix)}, opts...)...)
	if err != nil {
		t.Fatalf("locktest: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// eventually calls ok until it returns true, or for as long as waitTimeout lasts. It
// returns ok's last error.
func eventually(ok func(context.Context) (bool, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	var last error
	for {
		done, err := ok(ctx)
		if done {
			return true, nil
		}
		if ctx.Err() == nil { // else err may be about no more than that
			last = err
		}
		select {
		case <-ctx.Done():
			return false, last
		case <-time.After(2 * time.Millisecond):
		}
	}
}
