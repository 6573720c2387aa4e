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
//
// The service is in service.go, its clients are in traffic.go; the other files are the scoreboard.
package main

import (
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/perkey-go/perkey/examples/internal/show"
	"github.com/perkey-go/perkey/examples/internal/terminal"
)

type config struct {
	once     bool
	redisURL string
	addr     string
	requests int // of the traffic; 0: until the context ends
	clients  int
	beat     time.Duration      // what handlers and clients take is some of it
	terminal *terminal.Terminal // nil: the output is not one
}

func main() {
	cfg := config{clients: 24, beat: 150 * time.Millisecond, terminal: terminal.Open(os.Stdout)}
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
	rdb, closeRedis, err := show.Connect(cfg.redisURL)
	if err != nil {
		return err
	}
	defer closeRedis()
	listener, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return fmt.Errorf("listen on -addr %s: %w", cfg.addr, err)
	}
	addr := listener.Addr().(*net.TCPAddr)
	here := strings.NewReplacer("0.0.0.0:", "localhost:", "[::]:", "localhost:").Replace(addr.String())
	at := place{url: "http://" + here, local: addr.IP.IsLoopback()}
	board := newScoreboard(map[bool]string{true: "embedded", false: "real"}[cfg.redisURL == ""], at)
	// A prefix of its own keeps runs on one Redis apart. All it leaves there expires.
	service, err := newService(rdb, "demo-"+rand.Text()[:8], cfg.beat, board)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := newServer(service.router)
	go func() { _ = server.Serve(listener) }()

	showing, end := context.WithCancel(ctx)
	var traffic sync.WaitGroup
	traffic.Go(func() { defer end(); drive(ctx, &http.Transport{MaxIdleConnsPerHost: cfg.clients}, at.url, cfg, board) })
	display(showing, out, cfg, board)
	traffic.Wait()

	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	err = errors.Join(server.Shutdown(grace), service.stop(grace))
	if cfg.once && ctx.Err() != nil {
		err = errors.Join(err, errors.New("interrupted before the traffic was over"))
	}
	result := board.view()
	columns, _ := cfg.terminal.Size()
	fmt.Fprint(out, result.summary(columns))
	if cfg.once {
		fmt.Fprintln(out, result.lastLine())
	}
	return errors.Join(err, result.broken(cfg.once && ctx.Err() == nil))
}

// newServer makes a server whose time-outs let the longest request pass: a ticket that is waited for, half a minute. The console's
// live pages extend theirs.
func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}
}

// display shows the board until ctx ends: in place on a terminal, and else in a line now and then.
func display(ctx context.Context, out io.Writer, cfg config, board *scoreboard) {
	if cfg.terminal != nil {
		cfg.terminal.Draw(ctx, func(columns, rows int) []string { return board.view().layout(columns, rows) })
		fmt.Fprintln(out, "ending: what is under way, or parked, still runs")
		return
	}
	fmt.Fprintln(out, board.view().introduction(cfg.once))
	every := time.Tick(5 * time.Second)
	for {
		select {
		case <-every:
			fmt.Fprintln(out, board.view().sentence())
		case <-ctx.Done():
			fmt.Fprintln(out)
			return
		}
	}
}

// place is where the service is. local: on a loopback address.
type place struct {
	url   string
	local bool
}
