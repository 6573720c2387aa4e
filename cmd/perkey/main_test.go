package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/ops"
)

// patientVar has perkey wait for Redis as long as a busy machine may take, and find nothing in that.
const patientVar = "PERKEY_TEST_PATIENT"

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"perkey": perkey})
}

func perkey() {
	if os.Getenv(patientVar) != "" {
		awayAfter = time.Minute
		readFacts = func(ctx context.Context, rdb redis.UniversalClient, o ops.ExamineOptions) (ops.Facts, error) {
			f, err := ops.ReadFacts(ctx, rdb, o)
			for i := range f.Servers.Value {
				f.Servers.Value[i].RoundTrips = nil
			}
			return f, err
		}
	}
	main()
}

// Whether it refuses connections, or takes them and says nothing.
func TestPing_TellsSoonThatRedisIsAway(t *testing.T) {
	for name, away := range map[string]func(testing.TB) *redis.Client{"silent": redistest.Silent, "refuses": redistest.Refuses} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := (&tool{rdb: away(t)}).ping(t.Context())
			require.ErrorAs(t, err, new(*awayError), name)
			require.LessOrEqual(t, time.Since(began), 1500*time.Millisecond, name)
		})
	}
}

// TestScripts runs what is in testdata. UPDATE=1 writes what perkey says into it.
func TestScripts(t *testing.T) {
	server := redistest.Start(t)
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	slow, scanned := slowScans(t, server.Addr)
	alone := redistest.Start(t, "--appendonly", "yes") // the doctor's: there is nothing to say of it
	testscript.Run(t, testscript.Params{
		Dir: "testdata", UpdateScripts: os.Getenv("UPDATE") != "", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			prefix := strings.TrimSuffix(filepath.Base(e.WorkDir), "-") // the script's name
			server := server
			if strings.HasSuffix(prefix, "doctor") {
				server = alone
			}
			e.Setenv("PERKEY_REDIS", "redis://"+server.Addr)
			e.Setenv("PERKEY_PREFIX", prefix)
			e.Setenv("PERKEY_WHO", "ann@bastion")
			e.Setenv(patientVar, "1")
			e.Setenv("SERVER", server.Addr)
			e.Setenv("SLOW", slow)
			e.Setenv("SILENT", silent.Addr().String())
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
			b := &backstage{rdb: rdb, prefix: prefix}
			e.Defer(b.close)
			e.Values[stageKey{}] = b
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"hold": hold, "wants": wants, "enqueue": enqueue, "die": die, "idem": idem, "redis": raw, "norm": norm, "status": status, "width": width, "plain": plain,
			"scanned": func(ts *testscript.TestScript, _ bool, _ []string) {
				select {
				case <-scanned:
				case <-time.After(time.Minute):
					ts.Fatalf("nobody scans")
				}
			},
			"process": tellingProcess, "busy": busy, "tells": tells,
		},
	})
}

// slowScans is the address of a path to Redis that takes 50 ms in each direction. The channel is closed at the first SCAN on it.
func slowScans(t *testing.T, addr string) (string, <-chan struct{}) {
	t.Helper()
	proxy, scanned := redistest.NewProxy(t, addr), make(chan struct{})
	first := sync.OnceFunc(func() { close(scanned) })
	proxy.LoseRequest(func(request []byte) bool {
		if bytes.Contains(bytes.ToLower(request), []byte("\r\nscan\r\n")) {
			first()
		}
		return false
	})
	proxy.Delay(func() time.Duration { return 50 * time.Millisecond })
	return proxy.Addr, scanned
}

type stageKey struct{}

// backstage is what a script's other processes are.
type backstage struct {
	rdb     *redis.Client
	prefix  string
	lockers []*core.Locker
	calls   sync.WaitGroup
	cancels []context.CancelFunc
}

func of(ts *testscript.TestScript) *backstage { return ts.Value(stageKey{}).(*backstage) }

func (b *backstage) close() {
	for _, cancel := range b.cancels {
		cancel()
	}
	b.calls.Wait()
	for _, l := range b.lockers {
		_ = l.Close()
	}
	_ = b.rdb.Close()
}

func (b *backstage) locker(ts *testscript.TestScript) *core.Locker {
	l, err := core.New(b.rdb, core.WithPrefix(b.prefix), core.WithLogger(slog.New(slog.DiscardHandler)))
	ts.Check(err)
	b.lockers = append(b.lockers, l)
	return l
}

// unquote lets a script write keys as Go does.
func unquote(ts *testscript.TestScript, s string) string {
	key, err := unquotedText(s)
	ts.Check(err)
	return key
}

// hold KEY [shared]: another process takes a key. $FENCE is its fence.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	opts := []core.AcquireOption{core.Named("pay", "req-17"), core.LeaseTTL(time.Minute)}
	if len(args) > 1 {
		opts = append(opts, core.Shared())
	}
	lease, err := of(ts).locker(ts).TryAcquire(context.Background(), unquote(ts, args[0]), opts...)
	ts.Check(err)
	ts.Setenv("FENCE", fmt.Sprint(lease.Fence()))
}

// wants KEY: another process waits for a key.
func wants(ts *testscript.TestScript, _ bool, args []string) {
	b := of(ts)
	l := b.locker(ts)
	ctx, cancel := context.WithCancel(context.Background())
	b.cancels = append(b.cancels, cancel)
	before, err := l.Inspect(ctx, args[0])
	ts.Check(err)
	b.calls.Go(func() { _, _ = l.Acquire(ctx, args[0], core.Named("refund", "req-18")) })
	for {
		now, err := l.Inspect(ctx, args[0])
		ts.Check(err)
		if now.Waiting > before.Waiting {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *backstage) queue(ts *testscript.TestScript, name string) *delayqueue.Queue {
	q, err := delayqueue.New(b.rdb, name, delayqueue.WithPrefix(b.prefix), delayqueue.WithService("shop"))
	ts.Check(err)
	return q
}

// enqueue QUEUE ID [KEY [NAME]]: stores a job.
func enqueue(ts *testscript.TestScript, _ bool, args []string) {
	args = append(args, "", "")
	_, err := of(ts).queue(ts, args[0]).Enqueue(context.Background(), delayqueue.Job{
		ID: args[1], Key: unquote(ts, args[2]), Name: unquote(ts, args[3]), Payload: []byte("secret payload"), Principal: "secret principal",
	})
	ts.Check(err)
}

// die QUEUE CAUSE: a worker makes dead letters of all that is queued.
func die(ts *testscript.TestScript, _ bool, args []string) {
	b := of(ts)
	q := b.queue(ts, args[0])
	w, err := delayqueue.NewWorker(q, b.locker(ts), func(context.Context, delayqueue.Message) error {
		return delayqueue.SkipRetry(errors.New(unquote(ts, args[1])))
	}, delayqueue.WithLogger(slog.New(slog.DiscardHandler)), delayqueue.WithConcurrency(1))
	ts.Check(err)
	ts.Check(w.Start())
	for {
		s, err := q.Stats(context.Background())
		ts.Check(err)
		if s.Queued+s.Running == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	ts.Check(w.Stop(context.Background()))
}

// idem STATE ROUTE PRINCIPAL KEY: a request came so far.
func idem(ts *testscript.TestScript, _ bool, args []string) {
	b := of(ts)
	s, err := idempotency.New(b.rdb, idempotency.WithPrefix(b.prefix))
	ts.Check(err)
	w := idempotency.Work{Name: idempotency.NameOf(args[1], args[2], args[3]), Fingerprint: "f"}
	switch args[0] {
	case "parked":
		ts.Check(s.Parked(context.Background(), w, core.Ticket{ID: "t-1", Queue: "ship", ExpiresAt: time.Now().Add(10 * time.Minute)}))
	case "begun":
		_, err = s.Begin(context.Background(), w, 1)
		ts.Check(err)
	case "done":
		ts.Check(s.Finish(context.Background(), w, 1, []byte("secret response")))
	}
}

// redis COMMAND…: asks Redis. {P} is the prefix.
func raw(ts *testscript.TestScript, _ bool, args []string) {
	all := make([]any, len(args))
	for i, arg := range args {
		all[i] = strings.ReplaceAll(arg, "{P}", of(ts).prefix)
	}
	reply, err := of(ts).rdb.Do(context.Background(), all...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		ts.Check(err)
	}
	ts.Logf("%v", reply)
}

var (
	moments = regexp.MustCompile(`\b\d+(\.\d+)?(ms|s)\b|\b\d+m\d\ds\b|"20\d\d-[^"]*Z"|\btime=\S+|"[a-z_]+_s":[\d.]+`)
	fences  = regexp.MustCompile(`\b\d{16}\b`)
	pids    = regexp.MustCompile(`(HOST:|"pid":)\d+`)
	entries = regexp.MustCompile(`\d{13}-\d+`)
	heads   = regexp.MustCompile(`^[A-Z][A-Z ]+  [A-Z ]+$`)
	gaps    = regexp.MustCompile(`  +`)
	noTime  = regexp.MustCompile(`^\S+ .* -  +\d+$`) // a row, in a column as wide as the times of the others
)

// norm stdout|stderr: the file got has it, without what is another one each time.
func norm(ts *testscript.TestScript, _ bool, args []string) {
	host, err := os.Hostname()
	ts.Check(err)
	var lines []string
	for line := range strings.SplitSeq(ts.ReadFile(args[0]), "\n") {
		was := line
		line = moments.ReplaceAllString(line, "T")
		line = fences.ReplaceAllString(entries.ReplaceAllString(line, "ENTRY"), "FENCE")
		line = pids.ReplaceAllString(strings.ReplaceAll(line, host, "HOST"), "${1}PID")
		if line != was || heads.MatchString(line) || noTime.MatchString(line) {
			text := strings.TrimLeft(line, " ")
			line = line[:len(line)-len(text)] + strings.TrimRight(gaps.ReplaceAllString(text, "  "), " ")
		}
		lines = append(lines, strings.ReplaceAll(line, ts.Getenv("SERVER"), "SERVER"))
	}
	ts.Check(os.WriteFile(ts.MkAbs("got"), []byte(strings.Join(lines, "\n")), 0o600))
}

// status N COMMAND…: it ends with this status.
func status(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("status %d", got)
	}
}

// width FILE: each line fits into 80 columns.
func width(ts *testscript.TestScript, _ bool, args []string) {
	for line := range strings.SplitSeq(ts.ReadFile(args[0]), "\n") {
		if n := len([]rune(line)); n > 80 {
			ts.Fatalf("%d columns: %s", n, line)
		}
	}
}

// plain FILE: nothing in it does anything to a terminal, or is a secret.
func plain(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) || !utf8.ValidString(text) {
			ts.Fatalf("%q in %q", r, text)
		}
	}
	if strings.Contains(text, "secret") {
		ts.Fatalf("a secret in %q", text)
	}
}
