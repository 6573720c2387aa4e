package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// processVar makes this program a worker process: it holds settings as JSON. Its stdin and stdout speak net/rpc.
const processVar = "PERKEY_BENCH_PROCESS"

type settings struct {
	Name    string // of a lock, or of the implementation of a queue
	Addr    string
	Workers int
	Lease   time.Duration
}

// Job is what a worker process is asked for.
type Job struct {
	Key    string        // or the name of a queue
	At     time.Duration // when it begins, as monotonic says
	For    time.Duration // how long it lasts, at most
	Inside time.Duration // how long a holder keeps the key
	Count  int
}

// Worker is the state of a worker process. Its methods that take a Job are what it can be asked for.
type Worker struct {
	settings
	shared *shared
	lock   lock
	keys   []string // of leases
	leases []lease
}

// serve runs a worker process until its stdin ends, which it does with the parent.
func serve(text string) {
	w := &Worker{}
	check(json.Unmarshal([]byte(text), &w.settings))
	w.shared = must(mapShared(os.NewFile(sharedFD, "shared")))
	check(rpc.Register(w))
	rpc.ServeConn(parent{os.Stdout})
}

type parent struct{ io.WriteCloser }

func (parent) Read(p []byte) (int, error) {
	n, err := os.Stdin.Read(p)
	if err != nil {
		os.Exit(0) // whatever is under way
	}
	return n, err
}

// Open opens the lock and uses it once: connections, scripts.
func (w *Worker) Open(_ Job, _ *int) (err error) {
	ctx := context.Background()
	if w.lock, err = openLock(w.Name, target{w.Addr, w.Workers, w.Lease}); err != nil {
		return err
	}
	first := guarded{key: fmt.Sprintf("first:%d", os.Getpid())}
	return errors.Join(w.Prepare(Job{Key: first.key}, nil), pair(ctx, w.lock, &first))
}

// Prepare does what the lock needs before the key is first acquired.
func (w *Worker) Prepare(j Job, _ *int) error {
	if p, ok := w.lock.(preparer); ok {
		return p.Prepare(context.Background(), j.Key)
	}
	return nil
}

// process is a worker process as its parent sees it.
type process struct {
	*rpc.Client
	cmd *exec.Cmd
}

type pipes struct {
	io.ReadCloser
	io.WriteCloser
}

func (p pipes) Close() error { return p.WriteCloser.Close() } // Wait closes the other

// processes work for one implementation. When one fails or hangs all are ended, err says why, and so does the result.
type processes struct {
	*result
	all []*process
	err error
}

func (ps *processes) fail(err error) {
	ps.err, ps.remark = err, err.Error()
	ps.stop()
}

// start starts n processes of each of some locks, and waits until they are ready.
func (b *bench) start(n int, s settings, locks ...string) (rows results, all []*processes) {
	for _, s.Name = range locks {
		ps := b.startProcesses(n, s)
		ask[int](b, ps, ps.all, "Open", Job{For: 20 * time.Second})
		rows, all = append(rows, ps.result), append(all, ps)
	}
	return rows, all
}

// startProcesses starts n processes, which end with the scenario.
func (b *bench) startProcesses(n int, s settings) *processes {
	ps := &processes{result: &result{name: s.Name}}
	b.cleanup(ps.stop)
	for range n {
		cmd := exec.Command(must(os.Executable()))
		cmd.Env = append(os.Environ(), processVar+"="+string(must(json.Marshal(s))))
		cmd.Stderr = os.Stderr
		cmd.ExtraFiles = []*os.File{b.sharedFile}
		conn := pipes{must(cmd.StdoutPipe()), must(cmd.StdinPipe())}
		check(startChild(cmd))
		ps.all = append(ps.all, &process{rpc.NewClient(conn), cmd})
	}
	return ps
}

// grace is how long a process may take to answer after its job has ended.
const grace = 3 * time.Second

// pending is a job that some processes have been asked for. The slots of answers belong to the calls.
type pending[T any] struct {
	*processes
	calls   []*rpc.Call
	answers []T
	timeout time.Duration
}

// begin asks some of the processes for a job.
func begin[T any](ps *processes, some []*process, method string, j Job) *pending[T] {
	p := &pending[T]{ps, make([]*rpc.Call, len(some)), make([]T, len(some)), j.For + 2*grace}
	for i, one := range some {
		p.calls[i] = one.Go("Worker."+method, j, &p.answers[i], make(chan *rpc.Call, 1))
	}
	return p
}

// wait returns the answers, or nothing but zeros if one fails: see err.
func (p *pending[T]) wait(b *bench) []T {
	timeout := time.NewTimer(p.timeout)
	defer timeout.Stop()
	for _, c := range p.calls {
		var err error
		select {
		case call := <-c.Done:
			err = call.Error
		case <-timeout.C:
			err = fmt.Errorf("hangs: no answer within %v", p.timeout)
		case <-b.ctx.Done():
			err = b.ctx.Err()
		}
		if err != nil {
			p.fail(err)
			return make([]T, len(p.calls))
		}
	}
	return p.answers
}

// ask asks some of the processes, unless one has failed.
func ask[T any](b *bench, ps *processes, some []*process, method string, j Job) []T {
	if ps.err != nil {
		return make([]T, len(some))
	}
	return begin[T](ps, some, method, j).wait(b)
}

// stop ends the processes, and waits for them.
func (ps *processes) stop() {
	for _, p := range ps.all {
		_ = p.Close()
	}
	for _, p := range ps.all {
		killer := time.AfterFunc(2*time.Second, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		killer.Stop()
	}
	ps.all = nil
}

// Usage is what a worker process has used.
type Usage struct {
	CPU        time.Duration
	Heap       uint64 // after a collection, if the job counts
	Goroutines int
}

// Usage makes room for as many leases as the job counts, so that its own memory is not taken for theirs.
func (w *Worker) Usage(j Job, u *Usage) error { //nolint:unparam // net/rpc wants an error
	if w.leases == nil && j.Count > 0 {
		w.leases = make([]lease, 0, j.Count)
		w.keys = make([]string, j.Count)
		for i := range w.keys {
			w.keys[i] = fmt.Sprintf("%s:%d", w.Name, i)
		}
	}
	u.CPU, u.Goroutines = cpuTime(), runtime.NumGoroutine()
	if j.Count > 0 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what was in pools
		runtime.ReadMemStats(&m)
		u.Heap = m.HeapAlloc
	}
	return nil
}
