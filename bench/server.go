package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a Redis that is measured.
type server struct {
	addr    string
	admin   *redis.Client // for INFO, between measurements
	process *os.Process   // nil: not ours
}

// openServer connects to addr, or starts a redis-server on a free loopback port when addr is empty.
func (b *bench) openServer(addr string) *server {
	s := &server{addr: addr}
	if addr == "" {
		ln := must(net.Listen("tcp", "127.0.0.1:0"))
		s.addr = ln.Addr().String()
		_, port, _ := net.SplitHostPort(s.addr)
		check(ln.Close())
		s.process = b.child(exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1",
			"--dir", os.TempDir(), "--save", "", "--appendonly", "no"))
	}
	s.admin = b.client(s.addr)
	for end := time.Now().Add(grace); s.admin.Ping(b.ctx).Err() != nil && time.Now().Before(end); { // it may be starting
		time.Sleep(time.Millisecond)
	}
	return s
}

// clear deletes the keys of that pattern.
func (s *server) clear(pattern string) error {
	ctx := context.Background() // also when the run has been ended
	for cursor := uint64(0); ; {
		keys, next, err := s.admin.Scan(ctx, cursor, pattern, 5000).Result()
		if err == nil && len(keys) > 0 {
			err = s.admin.Unlink(ctx, keys...).Err()
		}
		if cursor = next; err != nil || cursor == 0 {
			return err
		}
	}
}

// calls counts the commands that the server ran, but for PING, which idle connections send, and INFO.
func (s *server) calls(ctx context.Context) values {
	all := values{scripts: 0, commands: 0}
	for stat, text := range must(s.admin.InfoMap(ctx, "commandstats").Result())["Commandstats"] {
		// cmdstat_evalsha: calls=12,usec=...
		var n float64
		must(fmt.Sscanf(text, "calls=%g", &n))
		switch stat {
		case "cmdstat_info", "cmdstat_ping":
			continue
		case "cmdstat_eval", "cmdstat_evalsha":
			all[scripts] += n
		}
		all[commands] += n
	}
	return all
}

// cpu is how much CPU time the server's main thread has used.
func (s *server) cpu(ctx context.Context) (total time.Duration) {
	info := must(s.admin.InfoMap(ctx, "cpu").Result())["CPU"]
	for _, name := range []string{"used_cpu_sys_main_thread", "used_cpu_user_main_thread"} {
		total += must(time.ParseDuration(cmp.Or(info[name], "0") + "s"))
	}
	return total
}

// What monitor sees, per second.
var (
	sent      = figure{name: "commands sent/s", digits: 1} // by clients
	inScripts = figure{name: "commands in scripts/s", digits: 1}
	allCalls  = figure{name: "commands/s", digits: 1}
)

// monitor watches for d. It asks for every command, which INFO cannot tell from those that scripts call; that slows
// Redis down, and suits a Redis that is not busy.
func (s *server) monitor(d time.Duration) values {
	conn := must(net.Dial("tcp", s.addr))
	defer func() { _ = conn.Close() }()
	must(fmt.Fprint(conn, "MONITOR\r\n"))
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		check(errors.New("no answer to MONITOR"))
	}
	_ = conn.SetReadDeadline(time.Now().Add(d))
	seen := values{}
	for lines.Scan() { // until the time is up
		// +1339518083.107412 [0 127.0.0.1:60866] "evalsha" "..."
		kind := sent
		if client, _, _ := strings.Cut(lines.Text(), "] "); strings.HasSuffix(client, " lua") {
			kind = inScripts
		}
		seen[kind] += 1 / d.Seconds()
		seen[allCalls] += 1 / d.Seconds()
	}
	return seen
}

// farFrom is the address of a TCP proxy that is far from target until the scenario ends: whatever passes it, either way,
// arrives that late. Order is kept and nothing else waits: many requests can be on their way.
func (b *bench) farFrom(target string, oneWay time.Duration) string {
	ln := must(net.Listen("tcp", "127.0.0.1:0"))
	b.cleanup(ln.Close)
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			go carry(client, server, oneWay)
			go carry(server, client, oneWay)
		}
	}()
	return ln.Addr().String()
}

// carry takes what from sends until it ends.
func carry(from, to net.Conn, oneWay time.Duration) {
	type chunk struct {
		due   time.Duration
		bytes []byte
	}
	chunks := make(chan chunk, 1000) // on their way
	defer close(chunks)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread() // else the thread ends, and with it the processes that it started
		for c := range chunks {
			sleepUntil(c.due)
			_, _ = to.Write(c.bytes)
		}
		_ = to.Close()
	}()
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		chunks <- chunk{monotonic() + oneWay, buf[:n]}
	}
}
