package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

func load(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if o, is := strings.CutPrefix(strings.TrimSpace(line), "-- #include "); is {
			line = load(filepath.Join(filepath.Dir(path), o))
		}
		out.WriteString(line)
	}
	return out.String()
}

var names = []string{"m", "z", "w", "r", "f", "c", "x", "y", "e", "k", "d0", "d1", "d2", "d3", "d4", "u", "h"}
var payload = strings.Repeat("p", 64)

func fixed() []any { return []any{"3600000 17179869184", "604800000", "10000000", "1000 4294967296 4294967296"} }

func build(form string, n int) []any {
	a := fixed()
	if strings.HasPrefix(form, "new") {
		a = []any{"3600000 17179869184", "604800000", "10000000 1000 4294967296 4294967296", n}
		var t []any
		for range n {
			id := rand.Text()[:22]
			a = append(a, id)
			if form == "new" {
				t = append(t, "bench"+payload)
			} else {
				t = append(t, fmt.Sprintf("line:%03d", (int(id[0])*256+int(id[1]))%1000)+"bench"+payload)
			}
		}
		h := "000005000"
		if form != "new" {
			h = "008005000"
		}
		return append(append(a, t...), fmt.Sprint(n, " ", h, " 0 900000 -"))
	}
	for range n {
		id := rand.Text()[:22]
		switch form {
		case "new":
			a = append(a, id, "bench"+payload, "000005000 0 900000 -")
		case "new-keyed":
			a = append(a, id, fmt.Sprintf("line:%03d", (int(id[0])*256+int(id[1]))%1000)+"bench"+payload, "008005000 0 900000 -")
		case "old":
			a = append(a, id, "", "", "000005000bench", payload, 0, 900000, "-")
		case "old-keyed":
			a = append(a, id, fmt.Sprintf("line:%03d", (int(id[0])*256+int(id[1]))%1000), "", "008005000line:000bench", payload, 0, 900000, "-")
		case "two":
			a = append(a, id, "000005000bench"+payload)
		case "five":
			a = append(a, id, "", "", "000005000bench", payload)
		}
	}
	return a
}

func main() {
	ctx := context.Background()
	port := "17" + fmt.Sprint(100+os.Getpid()%800)
	dir, _ := os.MkdirTemp("", "fl")
	defer os.RemoveAll(dir)
	cmd := exec.Command("redis-server", "--port", port, "--save", "", "--appendonly", "no", "--dir", dir, "--logfile", "l")
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	for rdb.Ping(ctx).Err() != nil {
		time.Sleep(10 * time.Millisecond)
	}
	type v struct{ name, file, form string }
	var vs []v
	for _, a := range os.Args[1:] {
		p := strings.Split(a, ",")
		vs = append(vs, v{p[0], p[1], p[2]})
	}
	sizes := []int{1, 7, 14}
	best := map[string]float64{}
	cpus := map[string]float64{}
	for round := range rounds() {
		for i, x := range vs {
			base := fmt.Sprintf("p:queue:{q%d}", i)
			var keys []string
			for _, n := range names {
				keys = append(keys, base+":"+n)
			}
			sha := rdb.ScriptLoad(ctx, load(x.file))
			if sha.Err() != nil {
				panic(sha.Err())
			}
			for _, n := range sizes {
				rdb.FlushAll(ctx)
				calls := count() / n
				var batches [][]any
				for range calls {
					batches = append(batches, build(x.form, n))
				}
				for _, b := range batches[:50] {
					if err := rdb.EvalSha(ctx, sha.Val(), keys, b...).Err(); err != nil {
						panic(fmt.Sprint(x.name, err))
					}
				}
				rdb.ConfigResetStat(ctx)
				c0 := cpu(ctx, rdb)
				for _, b := range batches[50:] {
					rdb.EvalSha(ctx, sha.Val(), keys, b...)
				}
				c1 := cpu(ctx, rdb)
				us := stat(ctx, rdb)
				k := fmt.Sprint(x.name, "/", n)
				if round == 0 || us < best[k] {
					best[k] = us
				}
				per := (c1 - c0) * 1e6 / float64(calls-50)
				if round == 0 || per < cpus[k] {
					cpus[k] = per
				}
			}
		}
	}
	for _, x := range vs {
		fmt.Printf("%-14s", x.name)
		for _, n := range sizes {
			k := fmt.Sprint(x.name, "/", n)
			fmt.Printf("  n=%d: %6.1f (%.2f/msg) cpu %.1f (%.2f)", n, best[k], best[k]/float64(n), cpus[k], cpus[k]/float64(n))
		}
		fmt.Println()
	}
}

func cpu(ctx context.Context, rdb *redis.Client) float64 {
	info := rdb.Info(ctx, "cpu").Val()
	s := 0.0
	for line := range strings.Lines(info) {
		n, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		if n == "used_cpu_sys_main_thread" || n == "used_cpu_user_main_thread" {
			f, _ := strconv.ParseFloat(v, 64)
			s += f
		}
	}
	return s
}

func stat(ctx context.Context, rdb *redis.Client) float64 {
	info := rdb.Info(ctx, "commandstats").Val()
	for line := range strings.Lines(info) {
		if strings.HasPrefix(line, "cmdstat_evalsha:") {
			_, v, _ := strings.Cut(line, "usec_per_call=")
			v, _, _ = strings.Cut(v, ",")
			f, _ := strconv.ParseFloat(v, 64)
			return f
		}
	}
	return 0
}

func count() int {
	n, _ := strconv.Atoi(os.Getenv("N"))
	return max(n, 6000)
}

func rounds() int {
	if os.Getenv("N") != "" {
		return 3
	}
	return 7
}
