package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

// childVar makes this program a child: it holds a role as JSON.
const childVar = "PERKEY_BENCH_CHILD"

// role is what a child is from start to end.
type role struct {
	Entrant string
	Addr    string
	Workers int
	Lease   time.Duration
	Board   string // path
	Queue   string // it works on this queue, and takes no jobs
}

// job is a line on the child's stdin. It answers each with one line on stdout.
type job struct {
	Do     string // "start", "contend", "give", "take", "hold", "usage", "drop"
	Key    string
	At     time.Duration // when it begins, as monotonic says
	For    time.Duration // how long it runs, at most
	Inside time.Duration // how long a holder keeps the key
	Count  int
}

// answer is what came of a job. Err is set if it failed.
type answer struct {
	Err string

	// Of contend.
	Counts  []int         // acquisitions of each worker
	Waits   histogram     // of all acquisitions, and of waits that the end cut short
	Elapsed time.Duration // until the end
	Last    time.Duration // until the last acquisition

	// Of take.
	Handoffs []time.Duration

	// Of usage.
	CPU        time.Duration
	Heap       uint64 // after a collection, if the job counts
	Goroutines int
}

// child is the state of a child process.
type child struct {
	role       role
	board      *board
	contestant contestant
	keys       []string // of leases
	leases     []held
}

// childMain runs a child until its stdin ends, which it does with the parent.
func childMain(roleText string) error {
	c := &child{}
	if err := json.Unmarshal([]byte(roleText), &c.role); err != nil {
		return fmt.Errorf("read the role: %w", err)
	}
	out := json.NewEncoder(os.Stdout)
	if err := c.open(); err != nil {
		return out.Encode(answer{Err: err.Error()})
	}
	if err := out.Encode(answer{}); err != nil {
		return err
	}
	lines := make(chan []byte)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			lines <- []byte(in.Text())
		}
		os.Exit(0) // whatever is under way
	}()
	for line := range lines {
		var j job
		if err := json.Unmarshal(line, &j); err != nil {
			return fmt.Errorf("read a job: %w", err)
		}
		if err := out.Encode(c.work(j)); err != nil {
			return err
		}
	}
	return io.EOF
}

// open opens the contestant and goes once through it: connections, scripts.
func (c *child) open() (err error) {
	if c.board, err = openBoard(c.role.Board); err != nil {
		return err
	}
	if c.role.Queue != "" {
		return c.occupy()
	}
	e := enter(c.role.Entrant)[0]
	if c.contestant, err = e.open(target{addr: c.role.Addr, workers: c.role.Workers, lease: c.role.Lease}); err != nil {
		return err
	}
	ctx := context.Background()
	warm := slot{key: fmt.Sprintf("warm:%d", os.Getpid())}
	if err := c.prepare(ctx, warm.key); err != nil {
		return err
	}
	return pair(ctx, c.contestant, &warm)
}

// prepare does what the contestant needs before key is first acquired.
func (c *child) prepare(ctx context.Context, key string) error {
	if s, ok := c.contestant.(starter); ok {
		return s.Start(ctx, key)
	}
	return nil
}

func (c *child) work(j job) (a answer) {
	var err error
	switch j.Do {
	case "start":
		err = c.prepare(context.Background(), j.Key)
	case "contend":
		a, err = c.contend(j)
	case "give":
		err = c.give(j)
	case "take":
		a.Handoffs, err = c.take(j)
	case "hold":
		err = c.hold(j)
	case "usage":
		a = c.usage(j)
	case "drop":
		err = c.drop()
	default:
		err = fmt.Errorf("no job is called %q", j.Do)
	}
	if err != nil {
		a.Err = err.Error()
	}
	return a
}

// usage makes room for as many leases as the job counts, so that its own memory
// is not taken for theirs.
func (c *child) usage(j job) answer {
	if c.leases == nil && j.Count > 0 {
		c.leases = make([]held, 0, j.Count)
		c.keys = make([]string, j.Count)
		for i := range c.keys {
			c.keys[i] = fmt.Sprintf("%s:%d", c.role.Entrant, i)
		}
	}
	a := answer{CPU: cpuTime(), Goroutines: runtime.NumGoroutine()}
	if j.Count > 0 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what was in pools
		runtime.ReadMemStats(&m)
		a.Heap = m.HeapAlloc
	}
	return a
}
