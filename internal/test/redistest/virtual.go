package redistest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// InVirtualTime runs test in a bubble of testing/synctest, on an embedded Redis inside it: its clock moves only when everybody
// waits, so that a busy machine makes nothing late. The Redis is reached by Env.Client alone.
func InVirtualTime(t *testing.T, test func(t *testing.T, env *Env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * 365 * 24 * time.Hour) // from 2000 on: today's times in ms have 13 digits
		test(t, Another(t))
	})
}

// Another starts another Redis in a bubble.
func Another(t *testing.T) *Env {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close) // after the clients are closed
	env := &Env{Prefix: prefix(), silent: &atomic.Bool{}}
	env.dial = dialer(t, func() (net.Conn, error) {
		conn, err := m.Dial()
		if err != nil {
			return nil, err
		}
		return newBuffered(conn, env.silent), nil
	})
	return env
}

// FallSilent has the Redis of a bubble take what it is sent, and never reply again.
func (e *Env) FallSilent() { e.silent.Store(true) }

// buffered is one end of a pipe that takes what is written at once, as a socket does: at the other end Redis may be about to write
// too.
type buffered struct {
	net.Conn
	silent *atomic.Bool // what is written is lost
	out    chan []byte
	closed chan struct{}
	once   sync.Once
}

func newBuffered(conn net.Conn, silent *atomic.Bool) *buffered {
	b := &buffered{Conn: conn, silent: silent, out: make(chan []byte, 1000), closed: make(chan struct{})}
	go func() {
		for {
			select {
			case piece := <-b.out:
				_, _ = b.Conn.Write(piece)
			case <-b.closed:
				return
			}
		}
	}()
	return b
}

func (b *buffered) Write(piece []byte) (int, error) {
	if b.silent.Load() {
		return len(piece), nil
	}
	select {
	case <-b.closed:
		return 0, net.ErrClosed
	case b.out <- bytes.Clone(piece):
		return len(piece), nil
	}
}

func (b *buffered) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Conn.Close()
}

// Refuses returns a client, in a bubble, of a Redis that refuses connections.
func Refuses(t testing.TB) *redis.Client {
	t.Helper()
	return Client(t, virtual(dialer(t, func() (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	})))
}

// Silent returns a client, in a bubble, of a Redis that takes connections and never replies.
func Silent(t testing.TB) *redis.Client {
	t.Helper()
	return Client(t, virtual(dialer(t, func() (net.Conn, error) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }() // until near is closed
		return near, nil
	})))
}

// dialer returns what a client in a bubble dials with. A bubble must not end before its goroutines, and when its test has returned
// time stands still: so a cleanup gives go-redis the time to finish what it does after its client was closed, and closes what that
// has left open.
func dialer(t testing.TB, dial func() (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	var mu sync.Mutex
	var all []net.Conn
	t.Cleanup(func() {
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range all {
			_ = conn.Close()
		}
	})
	return func(context.Context, string, string) (net.Conn, error) {
		conn, err := dial()
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, conn)
		}
		return conn, err
	}
}

// virtual are the options of a client in a bubble.
func virtual(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *redis.Options {
	return &redis.Options{
		Addr: "127.0.0.1:1", Dialer: dial,
		PoolSize: 1000, // nobody waits for a connection: go-redis keeps the timers of those who did, and one of another bubble never fires
		// They keep a mutex while they wait for Redis, and so the bubble's clock still.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}
