package httplock_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

var long = strings.Repeat("0123456789abcdef", 2<<10) // 32 KiB

// announcing has a handler announce the length of long.
func announcing(write func(w http.ResponseWriter, r *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(long)))
		write(w, r)
	}
}

func writeLong(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long) }

// onlyReader hides what else a reader can do.
type onlyReader struct{ io.Reader }

// longResponses are responses of long of which net/http sends all or most before their handler returns.
var longResponses = map[string]http.HandlerFunc{
	"one write": announcing(writeLong),
	"a reader":  announcing(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, onlyReader{strings.NewReader(long)}) }),
	"a file": func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "f.txt", time.Time{}, strings.NewReader(long))
	},
}

func serveInBubble(t *testing.T, h http.Handler) (dial func() net.Conn) {
	t.Helper()
	return testbed.ServeInBubble(t, &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), ReadHeaderTimeout: time.Hour})
}

// response is what a client has received by now.
type response struct {
	mu    sync.Mutex
	bytes []byte
}

func (r *response) String() string {
	synctest.Wait() // nothing more comes before time passes
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.bytes)
}

// receive sends a request without a body, and reads all that comes.
func receive(t *testing.T, dial func() net.Conn, method string, header ...string) *response {
	t.Helper()
	conn, got := dial(), &response{}
	t.Cleanup(func() { _ = conn.Close() })
	_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n%s\r\n", method, testbed.OrderPath, strings.Join(header, ""))
	require.NoError(t, err)
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := conn.Read(buf)
			got.mu.Lock()
			got.bytes = append(got.bytes, buf[:n]...)
			got.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return got
}

// openReplica serves a handler with and without a guard, in a bubble. Release lets the release of its keys through, for which they
// wait else.
func openReplica(t *testing.T, env *redistest.Env, h http.HandlerFunc, opts ...core.AcquireOption) (guarded, free func() net.Conn, release func()) {
	t.Helper()
	rdb, shut, open := env.Client(t), &atomic.Bool{}, make(chan struct{})
	rdb.AddHook(redistest.BeforeEach(func(redis.Cmder) {
		if shut.Load() {
			<-open
		}
	}))
	locker := testbed.NewLocker(t, rdb, core.WithPrefix(env.Prefix), core.WithLogger(slog.New(slog.DiscardHandler)))
	release = sync.OnceFunc(func() { close(open) })
	t.Cleanup(release)
	key := func(*http.Request) (string, error) { return "k", nil }
	perKey := httplock.PerKey(locker.Guard(core.RejectConflicts, opts...), key, httplock.WithLockedSafeMethods())
	return serveInBubble(t, perKey(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer shut.Store(true)
		h(w, r)
	}))), serveInBubble(t, h), release
}

// The client has the last bytes when the key was released, and not before.
func TestTail_ComesWithTheRelease(t *testing.T) {
	for name, h := range longResponses {
		t.Run(name, func(t *testing.T) {
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				guarded, free, release := openReplica(t, env, h)
				want := receive(t, free, http.MethodPost).String()
				require.True(t, strings.HasSuffix(want, long))
				resp := receive(t, guarded, http.MethodPost)
				got := resp.String()
				require.Contains(t, got, long[:len(long)/2], "the rest does not wait")
				require.Less(t, len(got), len(want), "the release has not come yet")
				release()
				require.Equal(t, want, resp.String(), "the same bytes")
			})
		})
	}
}

// A release that takes long delays a response by 100 ms at most, and so does a handler that works on.
func TestTail_DoesNotWaitForLong(t *testing.T) {
	for name, test := range map[string]struct {
		work time.Duration
		more int // bytes that it writes then
	}{"a release": {0, 0}, "a handler": {time.Second, 0}, "a handler that writes on": {time.Second, 100}} {
		t.Run(name, func(t *testing.T) {
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				guarded, free, _ := openReplica(t, env, announcing(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = w.Write([]byte(long[test.more:])) // io.WriteString would be buffered
					time.Sleep(test.work)
					_, _ = io.WriteString(w, long[:test.more])
				}))
				want := receive(t, free, http.MethodPost).String()
				require.True(t, strings.HasSuffix(want, long[test.more:]))
				resp := receive(t, guarded, http.MethodPost)
				require.Less(t, len(resp.String()), len(want))
				time.Sleep(99 * time.Millisecond)
				require.Less(t, len(resp.String()), len(want))
				time.Sleep(time.Millisecond)
				require.Equal(t, want, resp.String())
			})
		})
	}
}

// plain and unwrapping are writers of middleware that cannot flush, and encoder is one that should not be flushed.
type plain struct{ http.ResponseWriter }

type unwrapping struct{ http.ResponseWriter }

func (w unwrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type encoder struct {
	unwrapping
	flushed *atomic.Bool
}

func (w encoder) Flush() { w.flushed.Store(true) }

func (w encoder) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
}

// Whatever is in front of a guard, a tail does not wait for longer than 100 ms, and its timer harms nobody.
func TestTail_InFront(t *testing.T) {
	var flushed atomic.Bool
	fronts := map[string]func(http.ResponseWriter) http.ResponseWriter{
		"plain":      func(w http.ResponseWriter) http.ResponseWriter { return plain{w} },
		"unwrapping": func(w http.ResponseWriter) http.ResponseWriter { return unwrapping{w} },
		"encoder":    func(w http.ResponseWriter) http.ResponseWriter { return encoder{unwrapping{w}, &flushed} },
	}
	for name, front := range fronts {
		for door, route := range doors {
			t.Run(name+" "+door, func(t *testing.T) {
				redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
					locker := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix))
					h := route(locker.Guard(core.RejectConflicts), announcing(func(w http.ResponseWriter, r *http.Request) {
						w.WriteHeader(http.StatusOK)
						writeLong(w, r)
						time.Sleep(time.Second)
					}))
					resp := receive(t, serveInBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						h.ServeHTTP(front(w), r)
					})), http.MethodPost)
					time.Sleep(100 * time.Millisecond)
					require.True(t, name == "encoder" || strings.HasSuffix(resp.String(), long))
					require.False(t, flushed.Load())
					time.Sleep(time.Second)
				})
			})
		}
	}
}

// A response whose tail is sent early is stored like others.
func TestTail_OfAnIdempotentRequest(t *testing.T) {
	for door, route := range doors {
		t.Run(door, func(t *testing.T) {
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				rdb := env.Client(t)
				locker := testbed.NewLocker(t, rdb, core.WithPrefix(env.Prefix))
				store, err := idempotency.New(rdb, idempotency.WithPrefix(env.Prefix))
				require.NoError(t, err)
				dial := serveInBubble(t, route(locker.Guard(core.RejectConflicts), announcing(func(w http.ResponseWriter, r *http.Request) {
					writeLong(w, r)
					time.Sleep(time.Second)
				}), httplock.WithIdempotency(store), httplock.WithAnonymous()))
				for range 2 {
					resp := receive(t, dial, http.MethodPost, "Idempotency-Key: \"k\"\r\n")
					time.Sleep(2 * time.Second)
					require.True(t, strings.HasPrefix(resp.String(), "HTTP/1.1 200"))
					require.True(t, strings.HasSuffix(resp.String(), long))
				}
			})
		})
	}
}

// doors are routes of the frameworks whose writers differ.
var doors = map[string]func(*core.Guard, http.HandlerFunc, ...httplock.Option) http.Handler{
	"net/http": func(guard *core.Guard, h http.HandlerFunc, opts ...httplock.Option) http.Handler {
		return guarded(guard, h, opts...)
	},
	"gin": func(guard *core.Guard, h http.HandlerFunc, opts ...httplock.Option) http.Handler {
		engine := gin.New()
		engine.POST("/orders/:id", ginlock.PerKey(guard, ginlock.Param("order:", "id"), opts...), gin.WrapF(h))
		return engine
	},
	"echo": func(guard *core.Guard, h http.HandlerFunc, opts ...httplock.Option) http.Handler {
		e := echo.New()
		e.POST("/orders/:id", echo.WrapHandler(h), echolock.PerKey(guard, echolock.Param("order:", "id"), opts...))
		return e
	},
}

// Where nobody could use the key earlier, or the response streams, no byte waits.
func TestTail_IsNotKeptInVain(t *testing.T) {
	for name, test := range map[string]struct {
		h    http.HandlerFunc
		opts []core.AcquireOption
	}{
		"flushed before": {h: announcing(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, http.NewResponseController(w).Flush())
			writeLong(w, r)
		})},
		"flushed after": {h: announcing(func(w http.ResponseWriter, r *http.Request) {
			writeLong(w, r)
			assert.NoError(t, http.NewResponseController(w).Flush())
		})},
		"a key that stays held": {announcing(writeLong), []core.AcquireOption{core.MinHold(time.Minute)}},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				guarded, free, _ := openReplica(t, env, test.h, test.opts...)
				want := receive(t, free, http.MethodPost).String()
				require.True(t, strings.HasSuffix(want, long))
				require.Equal(t, want, receive(t, guarded, http.MethodPost).String())
			})
		})
	}
}

// cut is a connection that ends once its Redis is away.
type cut struct {
	net.Conn
	away *atomic.Bool
}

func (c cut) Write(p []byte) (int, error) {
	if c.away.Load() {
		return 0, syscall.ECONNRESET
	}
	return c.Conn.Write(p)
}

// While Redis is known to be away there is no release to wait for, after a long response and a short one.
func TestTail_IsNotKeptWithoutRedis(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{"long": announcing(writeLong), "short": ok} {
		t.Run(name, func(t *testing.T) {
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				away, opt := &atomic.Bool{}, *env.Client(t).Options()
				dialRedis := opt.Dialer
				opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if away.Load() {
						return nil, syscall.ECONNREFUSED
					}
					conn, err := dialRedis(ctx, network, addr)
					return cut{conn, away}, err
				}
				locker := testbed.NewLocker(t, redistest.Client(t, &opt), core.WithPrefix(env.Prefix), core.WithLogger(slog.New(slog.DiscardHandler)))
				known := make(chan struct{})
				dial := serveInBubble(t, guarded(locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, r *http.Request) {
					away.Store(true)
					_, err := locker.TryAcquire(context.WithoutCancel(r.Context()), "other")
					assert.ErrorIs(t, err, core.ErrUnavailable)
					close(known)
					handler(w, r)
				}))
				resp := receive(t, dial, http.MethodPost)
				<-known
				got := resp.String()
				require.True(t, strings.HasSuffix(got, long) || strings.HasSuffix(got, "\r\n\r\nok"), "%.200s", got)
			})
		})
	}
}

// Whatever a handler writes, its client gets the same bytes with a guard as without, and the handler the same results.
// It is long since most of it is a table.
func TestTail_ChangesNoResponse(t *testing.T) {
	type step func(w http.ResponseWriter) (any, error)
	write := func(n int) step {
		return func(w http.ResponseWriter) (any, error) { return w.Write([]byte(long[:n])) }
	}
	read := func(n int) step {
		return func(w http.ResponseWriter) (any, error) { return io.Copy(w, onlyReader{strings.NewReader(long[:n])}) }
	}
	limited := func(n, had int) step {
		return func(w http.ResponseWriter) (any, error) {
			r := &io.LimitedReader{R: strings.NewReader(long[:had]), N: int64(n)}
			copied, err := io.Copy(w, r)
			return []int64{copied, r.N}, err
		}
	}
	status := func(status int) step {
		return func(w http.ResponseWriter) (any, error) { w.WriteHeader(status); return status, nil }
	}
	length := func(value string) step {
		return func(w http.ResponseWriter) (any, error) { w.Header().Set("Content-Length", value); return value, nil }
	}
	hijack := func(w http.ResponseWriter) (any, error) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			_ = conn.Close()
		}
		return "hijack", err
	}
	panics := func(value any) step { return func(http.ResponseWriter) (any, error) { panic(value) } }
	for name, steps := range map[string][]step{
		"long and not announced": {write(20_000), write(10)},
		"announced, in one":      {length("20000"), write(20_000)},
		"announced, in pieces":   {length("20000"), write(1), write(18_000), write(1998), write(1)},
		"read":                   {length("20000"), read(20_000)},
		"a shorter reader":       {length("20000"), limited(20_000, 19_999), write(1)},
		"a reader of the tail":   {length("20000"), write(19_000), read(1000), write(0)},
		"more than announced":    {length("20000"), write(20_001), write(20_000)},
		"more, after the end":    {length("20000"), write(20_000), write(1), read(1)},
		"no number announced":    {length("x"), write(20_000)},
		"no body allowed":        {length("20000"), status(http.StatusNoContent), write(20_000)},
		"early hints":            {status(http.StatusEarlyHints), length("20000"), write(20_000)},
		"hijacked":               {hijack, write(1)},
		"hijacked after the end": {length("20000"), write(20_000), hijack},
		"a panic after the end":  {length("20000"), write(20_000), panics("mine")},
		"aborted after the end":  {length("20000"), write(20_000), panics(http.ErrAbortHandler)},
		"aborted before the end": {length("20000"), write(19_000), panics(http.ErrAbortHandler)},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				var results []string
				guarded, free, release := openReplica(t, env, func(w http.ResponseWriter, _ *http.Request) {
					for _, do := range steps {
						result, err := do(w)
						results = append(results, fmt.Sprint(result, err))
					}
				})
				for _, method := range []string{http.MethodPost, http.MethodHead} {
					want := receive(t, free, method).String()
					wanted := results
					results = nil
					resp := receive(t, guarded, method)
					time.Sleep(time.Millisecond)
					release()
					require.Equal(t, want, resp.String(), method)
					require.Equal(t, wanted, results, method)
					results = nil
				}
			})
		})
	}
}

// Clients that send one request after the other, each to another replica, are refused none.
func TestTail_ASequentialClientIsNotRefused(t *testing.T) {
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		var dials []func() net.Conn
		none := func(h http.Handler) http.Handler { return h }
		for _, front := range []func(http.Handler) http.Handler{none, httplock.Timeout(time.Hour)} {
			rdb := env.Client(t)
			rdb.AddHook(redistest.BeforeEach(func(redis.Cmder) { time.Sleep(4 * time.Millisecond) }))
			locker := testbed.NewLocker(t, rdb, core.WithPrefix(env.Prefix))
			dials = append(dials, serveInBubble(t, front(guarded(locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, r *http.Request) {
				size := 16 << 10 << (r.ContentLength % 3)
				w.Header().Set("Content-Length", strconv.Itoa(size))
				_, _ = io.WriteString(w, strings.Repeat(long, 2)[:size])
			}))))
		}
		var refused atomic.Int64
		var clients sync.WaitGroup
		for order := range 8 {
			clients.Go(func() {
				for i := range 24 {
					transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dials[i%2](), nil }}
					r := testbed.ToServer(t.Context(), t, "http://replica/orders/"+strconv.Itoa(order), strings.Repeat("x", i%3))
					resp, err := testbed.Send(&http.Client{Transport: transport}, r)
					if transport.CloseIdleConnections(); assert.NoError(t, err) && resp.Status != http.StatusOK {
						refused.Add(1)
					}
				}
			})
		}
		clients.Wait()
		require.Zero(t, refused.Load(), "of 192")
	})
}

// filed is a connection that counts the bytes of files which the system sends.
type filed struct {
	*net.TCPConn
	sent *atomic.Int64
}

func (c filed) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.TCPConn.ReadFrom(r)
	if limited, is := r.(*io.LimitedReader); is {
		r = limited.R
	}
	if _, is := r.(*os.File); is {
		c.sent.Add(n)
	}
	return n, err
}

type filedListener struct {
	net.Listener
	sent *atomic.Int64
}

func (l filedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return filed{conn.(*net.TCPConn), l.sent}, nil
}

// Files are sent by the system, all but the tail and what net/http reads for the Content-Type.
func TestTail_FilesAreNotCopied(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	content := strings.Repeat(long, 8)
	name := filepath.Join(t.TempDir(), "f.bin")
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := filedListener{plain, &atomic.Int64{}}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: guarded(b.Locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, name)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	resp, err := testbed.Send(http.DefaultClient, testbed.ToServer(t.Context(), t, "http://"+plain.Addr().String()+testbed.OrderPath, ""))
	require.NoError(t, err)
	require.Equal(t, content, resp.Body)
	require.GreaterOrEqual(t, l.sent.Load(), int64(len(content)-4<<10))
}

func TestPush_SaysWhatTheServerCannot(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	url, client := testbed.Serve(t, guarded(b.Locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, _ *http.Request) {
		pusher, able := w.(http.Pusher)
		if assert.True(t, able) {
			assert.ErrorIs(t, pusher.Push("/x", nil), http.ErrNotSupported)
		}
	}))
	resp, err := testbed.Send(client, testbed.ToServer(t.Context(), t, url+testbed.OrderPath, ""))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.Status)
}
