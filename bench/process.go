package main

import (
	"context"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// workerVar makes this program a worker process, whose stdin and stdout speak net/rpc.
const workerVar = "PERKEY_BENCH_WORKER"

// Job is what a worker process is asked for.
type Job struct {
	Name   string // of a lock, or of the implementation of a queue
	Target target
	Key    string        // or the name of a queue
	Start  time.Duration // when it begins, as monotonic says
	For    time.Duration // how long it lasts, at most
	Inside time.Duration // how long a holder keeps the key
	Count  int
}

// Answer is what came of a job. Each kind of job has fields of its own.
type Answer struct {
	Contended  []Contended     // of each goroutine
	Took       []time.Duration // of each hand-off
	Heap       uint64
	Goroutines int
}

// Contended is how a goroutine fared that wanted a key again and again.
type Contended struct {
	Count int                    // acquisitions
	Last  time.Duration          // until the last of them
	Waits *hdrhistogram.Snapshot // of all, and of the wait that the end cut short
}

// Worker is a worker process. Its methods that take a Job are what it can be asked for.
type Worker struct {
	shared  *shared
	lock    lock
	workers int
	keys    []string // of leases
	leases  []lease
}

// conn is a process's end of a connection.
type conn struct {
	io.Reader
	io.WriteCloser
}

// serveWorker serves a process that is killed when it is done.
func serveWorker() {
	check(rpc.Register(&Worker{shared: must(mapShared(os.NewFile(sharedFD, "shared")))}))
	rpc.ServeConn(conn{os.Stdin, os.Stdout})
}

// Open opens the lock and uses it once: connections, scripts.
func (w *Worker) Open(j Job, _ *Answer) (err error) {
	if w.lock, err = locks[j.Name](j.Target); err != nil {
		return err
	}
	w.workers = j.Target.Workers
	return (&section{key: fmt.Sprintf("first:%d", os.Getpid())}).pass(context.Background(), w.lock)
}

// process is a worker process as its parent sees it.
type process struct {
	*rpc.Client
	*os.Process
}

// start starts n processes, which end with the scenario.
func (b *bench) start(n int) (all []process) {
	for range n {
		cmd := exec.Command(must(os.Executable()))
		cmd.Env = append(os.Environ(), workerVar+"=1")
		cmd.Stderr = os.Stderr
		cmd.ExtraFiles = []*os.File{b.sharedFile}
		pipes := conn{must(cmd.StdoutPipe()), must(cmd.StdinPipe())}
		check(startChild(cmd))
		b.cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		all = append(all, process{rpc.NewClient(pipes), cmd.Process})
	}
	return all
}

// startLocks starts n processes of each of some locks.
func (b *bench) startLocks(n int, t target, names ...string) table {
	all := newTable(names...)
	for _, r := range all {
		r.processes = b.start(n)
		if _, err := b.ask(r.processes, "Open", Job{Name: r.name, Target: t, For: 20 * time.Second})(); err != nil {
			r.remark = err.Error()
		}
	}
	return all
}

// grace is how long a process may take to answer after its job has ended.
const grace = 3 * time.Second

// ask asks processes for a job, and returns how to wait for their answers.
func (b *bench) ask(processes []process, method string, j Job) (wait func() ([]Answer, error)) {
	answers := make([]Answer, len(processes))
	done := make(chan *rpc.Call, len(processes))
	for i, p := range processes {
		p.Go("Worker."+method, j, &answers[i], done)
	}
	return func() ([]Answer, error) {
		for range processes {
			call, err := receive(b.ctx, done, j.For+2*grace, "no answer")
			if err != nil {
				return nil, err
			}
			if call.Error != nil {
				return nil, call.Error
			}
		}
		return answers, nil
	}
}

// until waits for another process.
func until(ready func() bool) {
	for end := time.Now().Add(grace); !ready(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			check(fmt.Errorf("hangs: the other process is not ready within %v", grace))
		}
	}
}

// shared is memory that all processes of a run share: they check one another without Redis.
type shared struct {
	inside   atomic.Int64 // who is in the section now
	overlaps atomic.Int64 // entries that met somebody inside
	_        [48]byte     // the rest is not in that cache line

	// Of hand-offs, which are counted from 1.
	held     atomic.Int64 // the giver holds the key of this one
	waiting  atomic.Int64 // the taker asks for it
	released atomic.Int64 // when the giver began to release, in ns of monotonic
	taken    atomic.Int64 // the taker had it, and released it
}

// sharedFD is the file in a worker process.
const sharedFD = 3

// newShared returns the memory, in a file that no folder has.
func newShared() (*os.File, *shared) {
	f := must(os.CreateTemp("", "perkey-bench-"))
	check(os.Remove(f.Name()))
	check(f.Truncate(int64(unsafe.Sizeof(shared{}))))
	return f, must(mapShared(f))
}

// mapShared maps a file. It stays mapped until the process ends.
func mapShared(f *os.File) (*shared, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(shared{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("share memory: %w", err)
	}
	return (*shared)(unsafe.Pointer(&mem[0])), nil
}

func (s *shared) reset() {
	for _, word := range []*atomic.Int64{&s.inside, &s.overlaps, &s.held, &s.waiting, &s.released, &s.taken} {
		word.Store(0)
	}
}

func (s *shared) enter() {
	if s.inside.Add(1) != 1 {
		s.overlaps.Add(1)
	}
}

func (s *shared) leave() { s.inside.Add(-1) }

// checkOverlaps fails the run if two had one key.
func (s *shared) checkOverlaps(name string) {
	if n := s.overlaps.Load(); n > 0 {
		check(fmt.Errorf("%s let %d in while another was inside", name, n))
	}
}
