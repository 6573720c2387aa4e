package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a Redis that is measured.
type server struct {
	addr    string
	version string
	admin   *redis.Client // for INFO, between measurements
	process *os.Process   // nil: not ours
}

// openServer connects to addr, or starts a redis-server on a free loopback port when addr is empty.
func (b *bench) openServer(addr string) *server {
	s := &server{addr: addr}
	if addr == "" {
		s.start(b)
	}
	s.admin = redis.NewClient(&redis.Options{Addr: s.addr})
	b.cleanup(func() { _ = s.admin.Close() })
	// It may be starting.
	for end := time.Now().Add(10 * time.Second); s.admin.Ping(b.ctx).Err() != nil && time.Now().Before(end); {
		check(pause(b.ctx, 20*time.Millisecond))
	}
	info, err := s.admin.InfoMap(b.ctx, "server").Result()
	check(err)
	s.version = info["Server"]["redis_version"]
	return s
}

func (s *server) start(b *bench) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	s.addr = ln.Addr().String()
	_, port, _ := net.SplitHostPort(s.addr)
	_ = ln.Close()
	dir := must(os.MkdirTemp("", "perkey-bench-"))
	b.cleanup(func() { _ = os.RemoveAll(dir) })
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--logfile", "redis.log")
	check(startChild(cmd))
	s.process = cmd.Process
	b.cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
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

// counts is how many commands the server ran, those that a script called among them.
type counts struct{ commands, scripts, pings int }

// counts does not count INFO.
func (s *server) counts(ctx context.Context) (c counts) {
	for stat, text := range must(s.admin.InfoMap(ctx, "commandstats").Result())["Commandstats"] {
		// cmdstat_evalsha: calls=12,usec=...
		number, _, _ := strings.Cut(strings.TrimPrefix(text, "calls="), ",")
		n := must(strconv.Atoi(number))
		switch stat {
		case "cmdstat_info":
			continue
		case "cmdstat_eval", "cmdstat_evalsha":
			c.scripts += n
		case "cmdstat_ping":
			c.pings += n
		}
		c.commands += n
	}
	return c
}

// add adds what was called between before and after.
func (c *counts) add(before, after counts) {
	c.commands += after.commands - before.commands
	c.scripts += after.scripts - before.scripts
	c.pings += after.pings - before.pings
}

// cpu is how much CPU time the server's main thread has used.
func (s *server) cpu(ctx context.Context) time.Duration {
	info := must(s.admin.InfoMap(ctx, "cpu").Result())["CPU"]
	sys, err := strconv.ParseFloat(cmp.Or(info["used_cpu_sys_main_thread"], "0"), 64)
	check(err)
	user, err := strconv.ParseFloat(cmp.Or(info["used_cpu_user_main_thread"], "0"), 64)
	check(err)
	return time.Duration((sys + user) * float64(time.Second))
}

// What monitor sees.
const (
	sent      figure = "commands sent/s" // by clients, scripts among them
	sentEval  figure = "scripts among them/s"
	inScripts figure = "commands in scripts/s"
)

// monitor watches for d. It asks for every command, which INFO cannot tell from those that scripts call; that slows
// Redis down, and suits a Redis that is not busy.
func (s *server) monitor(d time.Duration) (map[figure]float64, error) {
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		return nil, fmt.Errorf("monitor Redis: %w", err)
	}
	defer func() { _ = conn.Close() }()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil || !lines.Scan() {
		return nil, fmt.Errorf("monitor Redis: %w", cmp.Or(err, lines.Err()))
	}
	_ = conn.SetReadDeadline(time.Now().Add(d))
	seen := map[figure]float64{}
	for lines.Scan() { // until the time is up
		// +1339518083.107412 [0 127.0.0.1:60866] "evalsha" "..."
		client, command, _ := strings.Cut(lines.Text(), "] ")
		switch {
		case strings.HasSuffix(client, " lua"):
			seen[inScripts] += 1 / d.Seconds()
			continue
		case strings.HasPrefix(strings.ToLower(command), `"eval`):
			seen[sentEval] += 1 / d.Seconds()
		}
		seen[sent] += 1 / d.Seconds()
	}
	return seen, nil
}

// printTraffic prints a table of what monitor saw.
func (all results) printTraffic(title string) {
	var columns []column
	for _, f := range []figure{sent, sentEval, inScripts} {
		columns = append(columns, col(string(f), f, decimals(1)))
	}
	all.print(title, columns...)
}
