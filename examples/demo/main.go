// Command demo is the front door of perkey: a small order service on gin with
// three guarded routes, one for each conflict policy, under traffic of its own, with
// the console for operators at /ops/.
//
//	go run ./examples/demo               embedded Redis, until Ctrl-C
//	go run ./examples/demo -once         ends after 3000 requests; status 1 if a promise was broken
//	go run ./examples/demo -redis redis://localhost:6379/0
//
// On a terminal it shows what happens in place. Elsewhere, and with TERM=dumb, it prints a line now and
// then. NO_COLOR turns colors off. On an address that is not loopback its console changes nothing.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/perkey-go/perkey/internal/test/embedded"
)

type config struct {
	once     bool
	redisURL string
	addr     string
	requests int // of the traffic; 0: until the context ends
	clients  int
	beat     time.Duration // what handlers and clients take is some of it
	terminal *terminal     // nil: the output is not one
}

func main() {
	cfg := config{clients: 24, beat: 150 * time.Millisecond, terminal: openTerminal(os.Stdout)}
	flag.BoolVar(&cfg.once, "once", false, "end after 3000 requests, with status 1 if a promise was broken")
	flag.StringVar(&cfg.redisURL, "redis", "", "URL of a Redis to use; empty: an embedded one")
	flag.StringVar(&cfg.addr, "addr", "127.0.0.1:0", "address to listen on; port 0 picks a free one")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unknown argument %q: see -help\n", flag.Arg(0))
		os.Exit(2)
	}
	if cfg.once {
		cfg.requests, cfg.beat = 3000, 10*time.Millisecond
	}
	logging.Disable() // go-redis would write across the screen; what fails is shown there

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if err := run(ctx, cfg, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run starts everything, drives the traffic, and reports. It returns an error
// if a promise was broken.
func run(ctx context.Context, cfg config, out io.Writer) error {
	rdb, kind, closeRedis, err := connect(ctx, cfg.redisURL)
	if err != nil {
		return err
	}
	defer closeRedis()
	listener, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return fmt.Errorf("listen on -addr %s: %w", cfg.addr, err)
	}
	addr := listener.Addr().(*net.TCPAddr)

	board := newScoreboard(kind, place{url: "http://" + reachable(addr), local: addr.IP.IsLoopback()})
	// A prefix of its own keeps runs on one Redis apart. All it leaves there expires.
	service, err := newService(rdb, "demo-"+rand.Text()[:8], cfg.beat, board)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{Handler: service.router, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	stopShowing := show(ctx, out, cfg, board)
	drive(ctx, board.place.url, cfg, board)
	stopShowing()

	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	err = errors.Join(server.Shutdown(grace), service.stop(grace))
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	if cfg.once && ctx.Err() != nil {
		err = errors.Join(err, errors.New("interrupted before the traffic was over"))
	}
	result := board.view()
	fmt.Fprint(out, result.summary(cfg.columns()))
	if cfg.once {
		fmt.Fprintln(out, result.lastLine())
	}
	return errors.Join(err, result.broken(cfg.once && ctx.Err() == nil))
}

// connect opens the Redis at url, or an embedded one.
func connect(ctx context.Context, url string) (rdb *redis.Client, kind string, closeAll func(), err error) {
	if url == "" {
		server, err := embedded.Start()
		if err != nil {
			return nil, "", nil, err
		}
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		return rdb, "embedded", func() { _ = rdb.Close(); server.Close() }, nil
	}
	opt, err := redis.ParseURL(url)
	if err != nil { // which can have the password in it
		return nil, "", nil, errors.New("-redis: want a URL such as redis://localhost:6379/0")
	}
	conn, err := net.DialTimeout(cmp.Or(opt.Network, "tcp"), opt.Addr, 3*time.Second)
	if err != nil {
		return nil, "", nil, fmt.Errorf("-redis: no answer from %s: %w", opt.Addr, err)
	}
	_ = conn.Close()
	rdb = redis.NewClient(opt)
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, "", nil, errors.Join(fmt.Errorf("-redis: no answer from %s: %w", opt.Addr, err), rdb.Close())
	}
	return rdb, "real", func() { _ = rdb.Close() }, nil
}

// reachable is where a client on this machine finds a listener.
func reachable(addr *net.TCPAddr) string {
	if addr.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", fmt.Sprint(addr.Port))
	}
	return addr.String()
}
