// Command bench measures perkey beside other locks and queues on Redis and beside
// the least that Redis can be asked for, on this machine and in one run.
//
//	go run . [-quick] [-only name] [-redis addr]
//
// It starts a redis-server of its own unless it is given one. In each scenario the implementations take turns, a few
// operations at a time, so that whatever else the machine does hits them all alike; a figure is the median of five
// rounds.
//
// A scenario is a function, and a line in scenarios; an implementation is one too, and a line in locks or queues. Where a
// scenario speaks of processes, the program starts itself again: see process.go. Bars say what perkey must reach. A
// missed bar is printed and does not fail the run: a benchmark is not a test. Two holders of a key at once do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// scenarios in the order in which they run.
var scenarios = []struct {
	name string
	run  func(*bench)
}{
	{"uncontended", uncontended},
	{"distinct", distinct},
	{"overload", overload},
	{"hotkey", hotKey},
	{"handoff", handOff},
	{"idle", idleHolder},
	{"leases", leases},
	{"web", web},
	{"idempotent", idempotent},
	{"ops", recorded},
	{"ops", listed},
	{"ops", line},
	{"queue-enqueue", enqueue},
	{"queue-drain", drain},
	{"queue-keys", drainKeys},
	{"queue-lateness", lateness},
	{"queue-idle", idleWorker},
	{"queue-redeliver", redeliver},
	{"queue-wake", wake},
}

// bench is what a scenario works with. It is for one goroutine.
type bench struct {
	ctx      context.Context // ends with the scenario
	server   *server
	quick    bool
	bars     *[]string
	cleanups []func() error

	shared     *shared
	sharedFile *os.File
}

func main() {
	slog.SetLogLoggerLevel(slog.LevelError) // not that the message of a killed worker runs again
	if os.Getenv(workerVar) != "" {
		serveWorker()
		return
	}
	quick := flag.Bool("quick", false, "a short run, for a first impression")
	only := flag.String("only", "", "run only the scenarios whose names begin with this")
	addr := flag.String("redis", "", "use the Redis at this address, which must be idle, not one of the program's own")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	b := &bench{ctx: ctx, quick: *quick, bars: new([]string)}
	err := b.run("bench", func(b *bench) { b.all(*only, *addr) })
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (b *bench) all(only, addr string) {
	b.shared, b.sharedFile = newShared()
	b.server = b.openServer(addr)
	version := must(b.server.admin.InfoMap(b.ctx, "server").Result())["Server"]["redis_version"]
	fmt.Printf("%s, %s, %d CPUs, redis %s at %s\n", runtime.Version(), runtime.GOARCH, runtime.NumCPU(), version, b.server.addr)
	start := time.Now()
	errs := []error{b.run("round trips", roundTrips)}
	for _, s := range scenarios {
		if strings.HasPrefix(s.name, only) && b.ctx.Err() == nil {
			errs = append(errs, b.run(s.name, s.run))
		}
	}
	printTable("what perkey must reach", *b.bars, 0)
	fmt.Printf("\nin %v\n", time.Since(start).Round(time.Second))
	check(errors.Join(append(errs, context.Cause(b.ctx))...))
}

// failure is what check panics with.
type failure struct{ error }

// check ends what try runs if err is not nil.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// errBroken ends the run: two had one key at once, or messages lost their order.
var errBroken = errors.New("broken")

// try runs f, and returns what check was given.
func try(f func()) (err error) {
	defer func() {
		recovered := recover()
		if failed, ok := recovered.(failure); ok {
			err = failed.error
		} else if recovered != nil {
			panic(recovered)
		}
	}()
	f()
	return nil
}

// run runs f with a ctx that ends when f does, and then what f has given to cleanup, the last first. It returns what check
// was given, and what the cleanups returned.
func (b *bench) run(name string, f func(*bench)) error {
	ctx, cancel := context.WithCancel(b.ctx)
	inner := *b
	inner.ctx, inner.cleanups = ctx, nil
	err := try(func() { f(&inner) })
	cancel()
	for _, clean := range slices.Backward(inner.cleanups) {
		err = errors.Join(err, clean())
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

func (b *bench) cleanup(f func() error) { b.cleanups = append(b.cleanups, f) }

// scale chooses between the sizes of a full and of a quick run.
func scale[T any](b *bench, full, quick T) T {
	if b.quick {
		return quick
	}
	return full
}

// together calls f on n goroutines, and returns when all have returned.
func together(n int, f func(i int) error) error {
	var group errgroup.Group
	for i := range n {
		group.Go(func() error { return f(i) })
	}
	return group.Wait()
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive waits for a value, or fails after d.
func receive[T any](ctx context.Context, values <-chan T, d time.Duration, failed string) (v T, err error) {
	select {
	case v = <-values:
		return v, nil
	case <-time.After(d):
		return v, fmt.Errorf("hangs: %s within %v", failed, d)
	case <-ctx.Done():
		return v, ctx.Err()
	}
}
