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

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// workerVar makes this program a worker process, whose stdin and stdout speak net/rpc.
const workerVar = "PERKEY_BENCH_WORKER"

// Worker is a worker process, which is killed when it is done. Its exported methods are what it can be asked for.
type Worker struct {
	*bench  // opens what is asked for, and closes nothing
	lock    lock
	workers int
	held    lease    // of a hand-off
	keys    []string // of leases
	leases  []lease
}

// None is nothing to ask for, or to answer.
type None struct{}

// conn is a process's end of a connection.
type conn struct {
	io.Reader
	io.WriteCloser
}

func serveWorker() {
	// The parent's ExtraFiles begin at 3.
	b := &bench{ctx: context.Background(), shared: mapShared(os.NewFile(3, "shared"))}
	check(rpc.Register(&Worker{bench: b}))
	rpc.ServeConn(conn{os.Stdin, os.Stdout})
}

// Open opens a lock and uses it once: connections, scripts.
func (w *Worker) Open(t Target, _ *None) error {
	return try(func() {
		w.lock, w.workers = locks[t.Name](w.bench, t), t.Workers
		check((&section{key: fmt.Sprintf("first:%d", os.Getpid())}).pass(w.ctx, w.lock))
	})
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
		b.child(cmd)
		all = append(all, process{rpc.NewClient(pipes), cmd.Process})
	}
	return all
}

// child starts a program, and kills it when the scenario ends.
func (b *bench) child(cmd *exec.Cmd) *os.Process {
	check(startChild(cmd))
	b.cleanup(func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	})
	return cmd.Process
}

// startLocks starts n processes of each of some locks.
func (b *bench) startLocks(n int, t Target, names ...string) table {
	all := newTable(names...)
	for _, r := range all {
		r.processes, t.Name = b.start(n), r.name
		r.try(func() { must(ask[None](b, r.processes, "Open", t, 20*time.Second)()) })
	}
	return all
}

// grace is how long a process may take to answer beside what it is asked for.
const grace = 6 * time.Second

// ask asks each process for something that takes that long, and returns how to wait for their answers.
func ask[Answer any](b *bench, processes []process, method string, args any, long time.Duration) (wait func() ([]Answer, error)) {
	answers, group := make([]Answer, len(processes)), new(errgroup.Group)
	for i, p := range processes {
		done := p.Go("Worker."+method, args, &answers[i], nil).Done
		group.Go(func() error {
			call, err := receive(b.ctx, done, long+grace, "no answer")
			if err != nil {
				return err
			}
			return call.Error
		})
	}
	return func() ([]Answer, error) { return answers, group.Wait() }
}

// shared is memory that all processes of a run share: they check one another without Redis.
type shared struct {
	inside   atomic.Int64 // who is in the section now
	overlaps atomic.Int64 // entries that met somebody inside
}

// newShared returns the memory, and its file, which no folder has.
func newShared() (*shared, *os.File) {
	f := must(os.CreateTemp("", "perkey-bench-"))
	check(os.Remove(f.Name()))
	check(f.Truncate(int64(unsafe.Sizeof(shared{}))))
	return mapShared(f), f
}

// mapShared maps a file. It stays mapped until the process ends.
func mapShared(f *os.File) *shared {
	mem := must(unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(shared{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	return (*shared)(unsafe.Pointer(&mem[0]))
}

func (s *shared) enter() {
	if s.inside.Add(1) != 1 {
		s.overlaps.Add(1)
	}
}

func (s *shared) leave() { s.inside.Add(-1) }

// check runs f, and ends the run if two had one key meanwhile.
func (s *shared) check(name string, f func()) {
	s.inside.Store(0)
	s.overlaps.Store(0)
	f()
	if n := s.overlaps.Load(); n > 0 {
		check(fmt.Errorf("%w: %s let %d in while another was inside", errBroken, name, n))
	}
}
