// Command demo is the front door of perkey: a small order service on gin with
// three guarded routes, one for each conflict policy, under traffic of its own, with
// the console for operators at /ops/.
//
//	go run ./examples/demo               embedded Redis, keeps serving afterwards
//	go run ./examples/demo -once         ends after the traffic; status 1 on any violation
//	go run ./examples/demo -redis redis://localhost:6379/0
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

	"github.com/perkey-go/perkey/internal/test/embedded"
)

type config struct {
	once     bool
	redisURL string
	addr     string
	requests int
	clients  int
	live     bool // redraw the scoreboard in place
}

func main() {
	cfg := config{requests: 3000, clients: 24, live: isTerminal(os.Stdout)}
	flag.BoolVar(&cfg.once, "once", false, "end after the traffic, with status 1 if anything was violated")
	flag.StringVar(&cfg.redisURL, "redis", "", "URL of a Redis to use; empty: an embedded one")
	flag.StringVar(&cfg.addr, "addr", "127.0.0.1:0", "address to listen on; port 0 picks a free one")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unknown argument %q: see -help\n", flag.Arg(0))
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
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

	board := newScoreboard(kind)
	// A prefix of its own keeps runs on one Redis apart. All it leaves there expires.
	service, err := newService(rdb, "demo-"+rand.Text()[:8], board)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return errors.Join(fmt.Errorf("listen on -addr %s: %w", cfg.addr, err), service.stop(ctx))
	}
	server := &http.Server{Handler: service.router, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	url := "http://" + reachable(listener.Addr())

	fmt.Fprintf(out, "perkey demo: an order service on %s, %s Redis, %d clients; its console: %[1]s/ops/\n\n", url, kind, cfg.clients)
	stopLive := board.live(out, cfg.live)
	tickets := drive(ctx, url, cfg, board)
	lost := service.await(ctx, tickets)
	stopLive()
	board.print(out)
	if ctx.Err() != nil {
		fmt.Fprintln(out, "interrupted: the traffic was not over")
	}

	if !cfg.once && ctx.Err() == nil {
		printCurl(out, url)
		<-ctx.Done()
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	err = errors.Join(server.Shutdown(grace), service.stop(grace))
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	if cfg.once {
		err = errors.Join(err, board.outcome(lost))
		fmt.Fprintln(out, board.summary())
	}
	return err
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
	if err != nil {
		return nil, "", nil, fmt.Errorf("-redis: want a URL such as redis://localhost:6379/0: %w", err)
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
func reachable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err == nil && ip.IsUnspecified() {
		return net.JoinHostPort("localhost", port)
	}
	return addr.String()
}

func printCurl(out io.Writer, url string) {
	fmt.Fprintf(out, `
Still serving. Two at a time, in one terminal (?work= says how long a handler takes):

  reject  curl -sX POST '%[1]s/orders/7/pay?work=3s' & sleep 0.2; curl -isX POST %[1]s/orders/7/pay
  retry   curl -sX PUT '%[1]s/carts/7?work=1s' & sleep 0.2; curl -isX PUT %[1]s/carts/7
  delay   curl -sX POST '%[1]s/orders/7/ship?work=3s' & sleep 0.2; curl -isX POST '%[1]s/orders/7/ship?work=3s'
          then curl the Location that the 202 names, again and again: queued, running, done
  watch   %[1]s/ops/ in a browser: who holds 7, who waits for it, what is parked

Ctrl-C ends it.
`, url)
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
