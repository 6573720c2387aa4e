package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is the Redis that is measured.
type server struct {
	addr    string
	version string

	admin *redis.Client // for INFO, between measurements
	cmd   *exec.Cmd     // nil: not ours to end
	dir   string
}

// openServer connects to addr, or starts a redis-server on a free loopback port
// with a directory of its own when addr is empty.
// run starts its process.
func openServer(ctx context.Context, addr string, run func(*exec.Cmd) error) (*server, error) {
	s := &server{addr: addr}
	if addr == "" {
		if err := s.start(run); err != nil {
			return nil, err
		}
	}
	s.admin = redis.NewClient(&redis.Options{Addr: s.addr})
	info, err := s.awaitInfo(ctx)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(s.dir, "redis.log"))
		s.close()
		return nil, fmt.Errorf("redis at %s: %w\n%s", s.addr, err, log)
	}
	_, after, _ := strings.Cut(info, "redis_version:")
	s.version, _, _ = strings.Cut(after, "\r\n")
	return s, nil
}

func (s *server) start(run func(*exec.Cmd) error) (err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	s.addr = ln.Addr().String()
	_, port, _ := net.SplitHostPort(s.addr)
	_ = ln.Close()
	if s.dir, err = os.MkdirTemp("", "perkey-bench-"); err != nil {
		return fmt.Errorf("start redis-server: %w", err)
	}
	s.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--logfile", "redis.log")
	if err := run(s.cmd); err != nil {
		_ = os.RemoveAll(s.dir)
		return fmt.Errorf("start redis-server: %w", err)
	}
	return nil
}

// awaitInfo asks until the server answers: it may be starting.
func (s *server) awaitInfo(ctx context.Context) (info string, err error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if info, err = s.admin.Info(ctx, "server").Result(); err == nil {
			return info, nil
		}
	}
	return "", errors.Join(err, ctx.Err())
}

// close ends the server if it is ours.
func (s *server) close() {
	if s.admin != nil {
		_ = s.admin.Close()
	}
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		_ = os.RemoveAll(s.dir)
	}
}

// clear deletes the keys of that pattern.
func (s *server) clear(ctx context.Context, pattern string) error {
	for cursor := uint64(0); ; {
		keys, next, err := s.admin.Scan(ctx, cursor, pattern, 5000).Result()
		if err == nil && len(keys) > 0 {
			err = s.admin.Unlink(ctx, keys...).Err()
		}
		if err != nil {
			return fmt.Errorf("clear %s: %w", pattern, err)
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// calls counts commands by name.
type calls map[string]int

// calls asks the server how often it ran each command so far. Commands that a
// script calls are in it, beside the script.
func (s *server) calls(ctx context.Context) (calls, error) {
	info, err := s.admin.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, fmt.Errorf("count commands: %w", err)
	}
	counted := calls{}
	for line := range strings.Lines(info) {
		// cmdstat_evalsha:calls=12,usec=...
		stat, found := strings.CutPrefix(line, "cmdstat_")
		name, rest, _ := strings.Cut(stat, ":calls=")
		number, _, _ := strings.Cut(rest, ",")
		n, err := strconv.Atoi(number)
		if !found || err != nil || name == "info" {
			continue
		}
		counted[name] = n
	}
	return counted, nil
}

// cpu is how much CPU time the server's main thread has used.
func (s *server) cpu(ctx context.Context) (time.Duration, error) {
	info, err := s.admin.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, fmt.Errorf("ask for CPU time: %w", err)
	}
	var sum float64
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys_main_thread" || name == "used_cpu_user_main_thread" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("ask for CPU time: %w", err)
			}
			sum += seconds
		}
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// add adds what was called between before and after.
func (c calls) add(before, after calls) {
	for name, n := range after {
		if n > before[name] {
			c[name] += n - before[name]
		}
	}
}

// per divides by a number of operations.
func (c calls) per(ops int) perOp {
	p := perOp{}
	for name, n := range c {
		p[name] = float64(n) / float64(ops)
	}
	return p
}

// perOp is commands by name, per operation.
type perOp map[string]float64

// scripts is how many scripts were run.
func (p perOp) scripts() float64 { return p["eval"] + p["evalsha"] }

// all is how many commands were run, those that scripts call among them.
func (p perOp) all() float64 {
	sum := 0.0
	for _, n := range p {
		sum += n
	}
	return sum
}

// String lists the commands, the most frequent first, and leaves out what is too
// rare to be the operation's own.
func (p perOp) String() string {
	names := slices.SortedFunc(maps.Keys(p), func(a, b string) int {
		return cmp.Or(cmp.Compare(p[b], p[a]), cmp.Compare(a, b))
	})
	var list []string
	for _, name := range names {
		if p[name] >= 0.005 {
			list = append(list, fmt.Sprintf("%s %.2f", name, p[name]))
		}
	}
	return strings.Join(list, ", ")
}
