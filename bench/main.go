// Command bench measures perkey beside other locks and queues on Redis and beside
// the least that Redis can be asked for, on this machine and in one run.
//
//	go run . [-quick] [-only name] [-redis addr]
//
// It starts a redis-server of its own unless it is given one. In each scenario
// the contestants take turns, a few operations at a time, so that whatever else
// the machine does hits them all alike; a figure is the median of five rounds. What is
// measured is shown beside the floor of its scenario, as a ratio to it.
//
// A scenario is a file, and a line in scenarios; so is a contestant, in entrants
// or queueEntrants.
// Where a scenario speaks of processes, the program starts itself again as often
// as needed: see team and child. Bars say what perkey must reach. A missed bar is
// printed and does not fail the run: a benchmark is not a test. Two holders of a key at
// once do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// scenarios in the order in which they run.
var scenarios = []scenario{
	{"uncontended", uncontended},
	{"distinct", distinct},
	{"hotkey", hotKey},
	{"handoff", handOff},
	{"idle", idleHolder},
	{"leases", leases},
	{"web", web},
	{"ops", observed},
	{"queue-enqueue", enqueue},
	{"queue-drain", drain},
	{"queue-keys", drainKeys},
	{"queue-lateness", lateness},
	{"queue-idle", idleWorker},
	{"queue-redeliver", redeliver},
	{"queue-wake", wake},
}

// scenario is one question put to all contestants.
type scenario struct {
	name string
	run  func(*bench) error
}

// bench is what a scenario works with.
type bench struct {
	ctx    context.Context
	server *server
	quick  bool
	out    *report

	nursery   nursery
	boardPath string
	board     *board
}

func main() {
	if text, ok := os.LookupEnv(childVar); ok {
		if err := childMain(text); err != nil {
			fmt.Fprintln(os.Stderr, "bench: a child:", err)
			os.Exit(1)
		}
		return
	}
	quick := flag.Bool("quick", false, "a short run, for a first impression")
	only := flag.String("only", "", "run only the scenarios whose names begin so")
	addr := flag.String("redis", "", "use the Redis at this address, which must be idle, not one of the program's own")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *quick, *only, *addr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, quick bool, only, addr string) (err error) {
	b := &bench{ctx: ctx, quick: quick, out: &report{w: os.Stdout}}
	if err := b.openBoard(); err != nil {
		return err
	}
	defer func() { _ = os.Remove(b.boardPath) }()
	if b.server, err = openServer(ctx, addr, b.nursery.start); err != nil {
		return err
	}
	defer b.server.close()
	fmt.Printf("%s, %s, %d CPUs, redis %s at %s\n", runtime.Version(), runtime.GOARCH, runtime.NumCPU(), b.server.version, b.server.addr)
	start := time.Now()
	errs := []error{b.roundTrips()}
	for _, s := range scenarios {
		if !strings.HasPrefix(s.name, only) || ctx.Err() != nil {
			continue
		}
		if err := s.run(b); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	b.out.printBars()
	fmt.Printf("\nin %v\n", time.Since(start).Round(time.Second))
	return errors.Join(append(errs, context.Cause(ctx))...)
}

func (b *bench) openBoard() error {
	f, err := os.CreateTemp("", "perkey-bench-board-")
	if err != nil {
		return fmt.Errorf("make shared memory: %w", err)
	}
	_ = f.Close()
	b.boardPath = f.Name()
	if err := createBoard(b.boardPath); err != nil {
		return err
	}
	b.board, err = openBoard(b.boardPath)
	return err
}

// scale chooses between the sizes of a full and of a quick run.
func (b *bench) scale(full, quick int) int {
	if b.quick {
		return quick
	}
	return full
}

// pick is scale for times.
func (b *bench) pick(full, quick time.Duration) time.Duration {
	if b.quick {
		return quick
	}
	return full
}
