// Command sim plays worlds of perkey's own, unmodified code: some processes, an embedded Redis and a network between them, in virtual
// time, with faults. All that happens follows from a seed, so that what was found once is found again.
//
//	go run ./sim -seed 7          # one world, and what broke in it
//	go run ./sim -seeds 1000      # many, on all cores
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/sim/overlay"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// config is world's.
type config struct {
	Seed      uint64
	World     string
	Processes int
	Seconds   int
	Without   []string
	With      []string
	Trace     bool

	stacks bool
}

// report is world's.
type report struct {
	Seed       uint64
	World      string
	Processes  int
	Calls      map[string]int
	Faults     map[string]int
	Virtual    time.Duration
	Digest     string
	Order      string
	Violations []string
	Events     []string
	Stacks     string

	cpu time.Duration
}

func run() error {
	var c config
	flag.Uint64Var(&c.Seed, "seed", 1, "the first seed")
	seeds := flag.Uint64("seeds", 1, "how many")
	flag.StringVar(&c.World, "world", "locks", "locks or queue")
	flag.IntVar(&c.Processes, "processes", 0, "how many processes; 0: the seed decides")
	flag.IntVar(&c.Seconds, "seconds", 60, "for how many virtual seconds there are faults")
	flag.BoolVar(&c.Trace, "trace", false, "list every command that Redis runs among the events")
	flag.BoolVar(&c.stacks, "stacks", false, "with one seed: print the stacks of all goroutines at the first broken promise")
	without := flag.String("without", "", "kinds of faults that do not happen, as in: stop,die")
	with := flag.String("with", "", "kinds of faults that happen in each world")
	flag.Parse()
	if *with != "" {
		c.With = strings.Split(*with, ",")
	}
	if *without != "" {
		c.Without = strings.Split(*without, ",")
	}
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, err := build(dir)
	if err != nil {
		return err
	}
	return play(binary, c, *seeds)
}

// build builds the world.
func build(dir string) (string, error) {
	replaced, err := overlay.Write(dir)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "world")
	cmd := exec.Command("go", "build", "-tags=faketime", "-overlay="+replaced, "-o", binary, "github.com/perkey-go/perkey/sim/world")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return binary, cmd.Run()
}

// tooLong is how long a world may take.
const tooLong = 2 * time.Minute

// one plays one world.
func one(binary string, c config) (r report, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	argument, err := json.Marshal(c)
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, binary, string(argument))
	// Another variable would be another world.
	cmd.Env = []string{"GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1", "GOGC=off"}
	in, out, err := os.Pipe()
	if err != nil {
		return r, err
	}
	defer in.Close()
	cmd.ExtraFiles = []*os.File{out}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return r, errors.Join(err, out.Close())
	}
	out.Close()
	text, _ := io.ReadAll(in)
	err = cmd.Wait()
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err != nil {
		return r, fmt.Errorf("seed %d: %w\n%s", c.Seed, err, withoutHeaders(said.String()))
	}
	return r, json.Unmarshal(text, &r)
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

func play(binary string, c config, seeds uint64) error {
	next := make(chan uint64)
	go func() {
		for i := range seeds {
			next <- c.Seed + i
		}
		close(next)
	}()
	var mu sync.Mutex
	all := total{stacks: c.stacks}
	var players sync.WaitGroup
	for range runtime.NumCPU() {
		players.Go(func() {
			for seed := range next {
				this := c
				this.Seed = seed
				r, err := one(binary, this)
				if err == nil && seed%100 == 0 {
					var again report
					if again, err = one(binary, this); err == nil && again.Digest != r.Digest {
						err = fmt.Errorf("seed %d: another digest the second time: %s, %s", seed, r.Digest, again.Digest)
					}
				}
				mu.Lock()
				all.add(this, r, err, seeds == 1)
				mu.Unlock()
			}
		})
	}
	players.Wait()
	fmt.Print(all.String())
	if all.failed > 0 {
		return fmt.Errorf("%d of %d seeds failed", all.failed, seeds)
	}
	return nil
}

// total is what came of all worlds.
type total struct {
	worlds, failed, calls int
	virtual, cpu          time.Duration
	orders                map[string]bool
	faults                map[string]int
	stacks                bool
}

func (t *total) add(c config, r report, err error, alone bool) {
	t.worlds++
	if t.orders == nil {
		t.orders, t.faults = map[string]bool{}, map[string]int{}
	}
	t.orders[r.Order] = true
	t.virtual += r.Virtual
	t.cpu += r.cpu
	for _, n := range r.Calls {
		t.calls += n
	}
	for kind, n := range r.Faults {
		t.faults[kind] += n
	}
	switch {
	case err != nil:
		t.failed++
		fmt.Println("FAIL", err)
	case len(r.Violations) > 0:
		t.failed++
		fmt.Printf("FAIL go run . -world %s -seed %d: %d broken promises, the first at %s\n", c.World, c.Seed, len(r.Violations), r.Violations[0])
	}
	if alone {
		for _, e := range r.Events {
			fmt.Println(e)
		}
		if t.stacks {
			fmt.Println(r.Stacks)
		}
		for _, v := range r.Violations {
			fmt.Println("VIOLATION", v)
		}
		fmt.Printf("digest %s, calls %v\n", r.Digest, r.Calls)
	}
}

func (t *total) String() string {
	return fmt.Sprintf("%d worlds, %d failed: %d calls in %s of virtual time, %d different orders of events, %.1f s of processor time\nfaults: %v\n",
		t.worlds, t.failed, t.calls, t.virtual.Round(time.Second), len(t.orders), t.cpu.Seconds(), t.faults)
}
