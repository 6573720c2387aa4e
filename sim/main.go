// Command sim plays worlds of perkey's own, unmodified code: some processes, an embedded Redis and a network between them, in virtual
// time, with faults. All that happens follows from a seed, so that what was found once is found again.
//
//	go run -C sim . -seed 7                   # one world, and what broke in it
//	go run -C sim . -seeds 1000               # many, on all cores
//	go run -C sim . -seed 7 -shrink           # a smaller one that breaks a promise as well
//	go run -C sim . -mutants FILE -seeds 50   # how many seeds it takes to find each mutant of the tests
//
// A seed belongs to one state of the sources and one version of Go.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/sim/overlay"
	"github.com/perkey-go/perkey/sim/plan"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

func run() error {
	var c plan.Config
	flag.Uint64Var(&c.Seed, "seed", 1, "the first seed")
	seeds := flag.Uint64("seeds", 1, "how many")
	flag.StringVar(&c.World, "world", "", "the kind of world: locks, queue or web; empty: the seed decides")
	flag.IntVar(&c.Processes, "processes", 0, "how many processes there are; 0: the seed decides")
	flag.IntVar(&c.Seconds, "seconds", 60, "for how many virtual seconds there are faults")
	flag.BoolVar(&c.Trace, "trace", false, "list every command that Redis runs among the events")
	shrink := flag.Bool("shrink", false, "look for a smaller world that breaks a promise as well")
	stacks := flag.Bool("stacks", false, "print the stacks of all goroutines at the first broken promise")
	list := func(of *[]string) func(string) error {
		return func(text string) error {
			*of = strings.Split(text, ",")
			return nil
		}
	}
	flag.Func("with", "kinds of faults that happen in any case, as in: stop,die", list(&c.With))
	flag.Func("without", "kinds of faults that do not happen", list(&c.Without))
	flag.Func("strict", "what is not promised, and counts as broken too: that redis keeps its data and its time, that nobody is deaf to the end of a lease", list(&c.Strict))
	kept := flag.String("kept", "", "a file with worlds and seeds to play before those of -seeds")
	results := flag.String("results", "", "a file to append a line to of what came of many worlds, for docs/proof.md")
	mutants := flag.String("mutants", "", "a file: instead, try the mutants of core's and delayqueue's tests, and append to it how many seeds each took")
	check := flag.Bool("check", false, "with -mutants: play a world of each mutant of a script that the file says is found within -seeds")
	only := flag.String("run", "", "with -mutants: those whose name matches")
	flag.Parse()
	if *mutants != "" {
		match, err := regexp.Compile(*only)
		if err != nil {
			return err
		}
		if *check {
			return checkMutants(context.Background(), c, *seeds, *mutants)
		}
		return tryMutants(context.Background(), c, *seeds, match, *mutants)
	}
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	w, err := build(context.Background(), dir, nil)
	if err != nil {
		return err
	}
	if *shrink {
		if c, _, err = w.shrink(c); err != nil {
			return err
		}
		fmt.Println(command(c))
	}
	if *seeds == 1 {
		return w.tell(c, *stacks)
	}
	all := &total{orders: map[string]bool{}}
	if *kept != "" {
		worlds, err := keptWorlds(*kept, c)
		if err != nil {
			return err
		}
		w.playAll(all, slices.Values(worlds))
	}
	w.playAll(all, func(yield func(plan.Config) bool) {
		next := c
		for range *seeds {
			if !yield(next) {
				return
			}
			next.Seed++
		}
	})
	fmt.Print(all)
	if *results != "" {
		if err := all.append(*results, c); err != nil {
			return err
		}
	}
	if all.Failed > 0 {
		return fmt.Errorf("%d of %d seeds failed", all.Failed, *seeds)
	}
	return nil
}

// binary is the path of a built world.
type binary string

// build builds the world, with further files in place of others. It is the same wherever it is built.
func build(ctx context.Context, dir string, replaced map[string]string) (binary, error) {
	path, err := overlay.Write(ctx, dir, replaced)
	if err != nil {
		return "", err
	}
	built := filepath.Join(dir, "world")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags=faketime", "-ldflags=-checklinkname=0", "-overlay="+path, "-o", built, "github.com/perkey-go/perkey/sim/world")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return binary(built), cmd.Run()
}

// A world may take two minutes of processor time and 4 GiB of addresses; a busy machine may take longer over it.
const (
	limits  = "ulimit -t 120 && ulimit -v 4194304"
	tooLong = time.Hour
)

// mostLines is how much is shown of what a world says that crashed.
const mostLines = 40

// play plays a world, and returns what processor time it took.
func (b binary) play(c plan.Config) (r plan.Report, cpu time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	if c.World == "" {
		c.World = plan.Worlds[c.Seed%uint64(len(plan.Worlds))]
	}
	argument, err := json.Marshal(c)
	if err != nil {
		return r, 0, err
	}
	// An argument of another length, or another variable, would be another world; and a shell tells what it starts where it is.
	cmd := exec.CommandContext(ctx, "sh", "-c", limits+` && exec "$0" "$@"`, string(b), fmt.Sprintf("%-1000s", argument), fmt.Sprintf("%-200s", c.Mutant)) //nolint:gosec // it was built just now
	cmd.Dir = "/"
	cmd.Env = []string{"GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1,gcstoptheworld=2", "GOGC=off"}
	in, out, err := os.Pipe()
	if err != nil {
		return r, 0, err
	}
	defer func() { _ = in.Close() }()
	cmd.ExtraFiles = []*os.File{out}
	var said strings.Builder
	cmd.Stderr = &said
	err = cmd.Start()
	_ = out.Close()
	if err != nil {
		return r, 0, err
	}
	text, _ := io.ReadAll(in)
	err = cmd.Wait()
	cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err != nil {
		lines := strings.SplitAfterN(withoutHeaders(said.String()), "\n", mostLines+1)
		return r, cpu, fmt.Errorf("%s: %w\n%s", command(c), err, strings.Join(lines[:min(len(lines), mostLines)], ""))
	}
	return r, cpu, json.Unmarshal(text, &r)
}

// withoutHeaders takes the headers out of what a program with virtual time wrote.
func withoutHeaders(text string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "\x00\x00PB")
		b.WriteString(before)
		if !found || len(rest) < 12 {
			return b.String()
		}
		text = rest[12:]
	}
}

// tell plays one world, and tells all of it.
func (b binary) tell(c plan.Config, stacks bool) error {
	r, cpu, err := b.play(c)
	if err != nil {
		return err
	}
	for _, e := range r.Events {
		fmt.Println(e)
	}
	if stacks {
		fmt.Println(r.Stacks)
	}
	for _, v := range r.Violations {
		fmt.Println("BROKEN", v)
	}
	fmt.Printf("%d processes, %s of virtual time in %.1f s of processor time, digest %s\ncalls: %v\nfaults: %v\n",
		r.Processes, r.Virtual.Round(time.Second), cpu.Seconds(), r.Digest, r.Calls, r.Faults)
	if n := len(r.Violations); n > 0 {
		return fmt.Errorf("%d broken promises", n)
	}
	return nil
}

// keptWorlds reads lines of a world, a seed, and what that broke once.
func keptWorlds(path string, c plan.Config) (worlds []plan.Config, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := fmt.Sscan(line, &c.World, &c.Seed); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, line, err)
		}
		worlds = append(worlds, c)
	}
	return worlds, nil
}

// playAll plays worlds on all cores. Each hundredth seed is played twice.
func (b binary) playAll(all *total, worlds iter.Seq[plan.Config]) {
	next := make(chan plan.Config)
	go func() {
		for c := range worlds {
			next <- c
		}
		close(next)
	}()
	var players sync.WaitGroup
	for range runtime.NumCPU() {
		players.Go(func() {
			for c := range next {
				r, cpu, err := b.play(c)
				if err == nil && c.Seed%100 == 0 {
					var again plan.Report
					if again, _, err = b.play(c); err == nil && again.Digest != r.Digest {
						err = fmt.Errorf("seed %d: digest %s, and the second time %s: something in it does not follow from the seed", c.Seed, r.Digest, again.Digest)
					}
				}
				all.add(c, r, cpu, err)
			}
		})
	}
	players.Wait()
}

// total is what came of all worlds.
type total struct {
	plan.Batch
	mu     sync.Mutex
	orders map[string]bool
}

func (t *total) add(c plan.Config, r plan.Report, cpu time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.orders[r.Order] = true
	one := plan.Batch{Worlds: 1, Virtual: r.Virtual, Processor: cpu, Faults: r.Faults}
	for _, n := range r.Calls {
		one.Calls += n
	}
	switch {
	case err != nil:
		one.Failed = 1
		fmt.Println("FAIL", err)
	case len(r.Violations) > 0:
		one.Failed = 1
		fmt.Printf("FAIL %s: %d broken promises, the first: %s\n", command(c), len(r.Violations), r.Violations[0])
	}
	t.Add(one)
	t.Orders = len(t.orders)
}

// append appends what came of all worlds to a file.
func (t *total) append(path string, c plan.Config) error {
	commit, err := exec.CommandContext(context.Background(), "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return fmt.Errorf("git describe: %w", err)
	}
	t.Date, t.Commit, t.Go = time.Now().UTC().Format(time.DateOnly), strings.TrimSpace(string(commit)), runtime.Version()
	t.World, t.First = c.World, c.Seed
	return t.Append(path)
}

func (t *total) String() string {
	return fmt.Sprintf("%d worlds, %d failed: %d calls in %s of virtual time, %d different orders of events, %.1f s of processor time\nfaults: %v\n",
		t.Worlds, t.Failed, t.Calls, t.Virtual.Round(time.Second), t.Orders, t.Processor.Seconds(), t.Faults)
}
