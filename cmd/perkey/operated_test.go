package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// service is a process of a service under load, until its input ends. It hangs with the key HANG, if there is one.
func service() {
	ctx, prefix := context.Background(), os.Getenv("PERKEY_PREFIX")
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	rdb, recorder := redis.NewClient(&redis.Options{Addr: os.Getenv("SERVER")}), ops.NewRecorder()
	locker, err := core.New(rdb, core.WithPrefix(prefix), core.WithTTL(6*time.Second), core.WithObserver(recorder.Locks(core.NopObserver{})))
	check(err)
	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix(prefix), delayqueue.WithQueueObserver(recorder.Queues(delayqueue.NopObserver{})))
	check(err)
	worker, err := delayqueue.NewWorker(queue, locker, func(ctx context.Context, m delayqueue.Message) error {
		if mended, err := rdb.Exists(ctx, prefix+"-mended").Result(); err != nil || m.Name == "carrier" || m.Name == "charge" && mended == 0 {
			return delayqueue.SkipRetry(errors.New(map[string]string{"carrier": "carrier API: 502", "charge": "card declined"}[m.Name]))
		}
		return nil
	}, delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
	check(err)
	check(worker.Start())
	_, err = ops.StartBeacon(rdb, recorder, locker, ops.WithWorkers(worker), ops.WithInterval(time.Second))
	check(err)
	work := func(key string) {
		_ = locker.Do(ctx, key, func(context.Context) error { time.Sleep(time.Millisecond); return nil }, core.Named("POST /orders/:id/ship", ""))
	}
	for i := range 150 {
		work(fmt.Sprint("order:", i%10))
	}
	if hang := os.Getenv("HANG"); hang != "" {
		lease, err := locker.Acquire(ctx, hang, core.Named("POST /orders/:id/ship", "req-17"))
		check(err)
		context.AfterFunc(lease.Context(), func() { fmt.Println("lost", hang) })
	}
	go func() {
		for i := 0; ; i++ {
			work(fmt.Sprint("cart:", i%5))
			time.Sleep(5 * time.Millisecond)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// operated is a service of three processes, and what an operator has: the command, and the console in a browser.
type operated struct {
	t       *testing.T
	addr    string
	console string
	rdb     *redis.Client
	mu      sync.Mutex
	said    bytes.Buffer // by the processes
}

func (o *operated) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.Write(b)
}

func (o *operated) says(line string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Contains(o.said.String(), line)
}

func (o *operated) start(hang string) {
	c := exec.Command("service")
	c.Env = append(os.Environ(), "SERVER="+o.addr, "PERKEY_PREFIX="+o.t.Name(), "HANG="+hang)
	c.Stdout, c.Stderr = o, os.Stderr
	in, err := c.StdinPipe()
	require.NoError(o.t, err)
	require.NoError(o.t, c.Start())
	o.t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})
}

func (o *operated) perkey(args ...string) (status int, out string) {
	var said, complained bytes.Buffer
	status = run(o.t.Context(), append([]string{"perkey", "--redis", "redis://" + o.addr, "--prefix", o.t.Name()}, args...), &said, &complained)
	return status, said.String() + complained.String()
}

func (o *operated) page(path string) string {
	return ask(o.t, "GET", o.console+path, nil, asAnn).body
}

// follow opens the page that a link of a page leads to: the one with this beginning.
func (o *operated) follow(path, link string) (page string) {
	o.t.Helper()
	found := regexp.MustCompile(`(?:href|action)="(` + regexp.QuoteMeta(link) + `[^"]*)"`).FindStringSubmatch(o.page(path))
	require.NotNil(o.t, found, "%s has no link to %s", path, link)
	return html.UnescapeString(found[1])
}

// change opens the page of a change, and sends its form.
func (o *operated) change(path string) {
	o.t.Helper()
	done := ask(o.t, "POST", o.console+o.follow(path, "change?"), url.Values{"why": {"INC-1"}, "rate": {"0"}}, asAnn)
	require.Equal(o.t, http.StatusOK, done.status, done.body)
}

var annsToken = strings.Repeat("t", minToken)

func asAnn(r *http.Request) { r.SetBasicAuth("ann", annsToken) }

// What goes wrong with a service is found from the command alone and from the console alone, and mended with what they offer, as they tell.
// It is long since it is one story.
func TestOperator_FindsAndMends(t *testing.T) {
	o := &operated{t: t, addr: redistest.Start(t, "--appendonly", "yes").Addr}
	o.rdb = redistest.Client(t, &redis.Options{Addr: o.addr})
	ctx := t.Context()
	o.start("order:hang-1")
	o.start("order:hang-2")
	o.start("")
	users := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(users, []byte("ann "+annsToken+"\n"), 0o600))
	o.console = serve(t, o.addr, "console", "--listen", "127.0.0.1:0", "--users", users, "--changes")

	queues := map[string]*delayqueue.Queue{}
	for _, name := range []string{"ship", "mail"} {
		q := testbed.NewQueue(t, o.rdb, name, delayqueue.WithPrefix(t.Name()))
		queues[name] = q
	}
	enqueue := func(queue, id, name, key string) {
		_, err := queues[queue].Enqueue(ctx, delayqueue.Job{ID: id, Name: name, Key: key})
		require.NoError(t, err)
	}
	redistest.Eventually(t, func() bool {
		f, err := ops.ReadFleet(ctx, o.rdb, t.Name())
		held := map[string]bool{}
		for _, l := range f.OldestLeases(10) {
			held[l.Key] = true
		}
		return err == nil && len(f.Processes) == 3 && held["order:hang-1"] && held["order:hang-2"]
	}, "two processes hang")
	enqueue("ship", "parked-1", "ship", "order:hang-1")
	enqueue("ship", "parked-2", "ship", "order:hang-2")
	for i := range 3 {
		enqueue("ship", fmt.Sprint("charge-", i), "charge", "")
	}
	for i := range 2 {
		enqueue("ship", fmt.Sprint("carrier-", i), "carrier", "")
	}
	enqueue("mail", "receipt", "receipt", "")
	require.NoError(t, o.rdb.HSet(ctx, t.Name()+":queue:{mail}:c", "claimed", 1).Err()) // long ago
	require.NoError(t, o.rdb.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	now, err := o.rdb.Time(ctx).Result()
	require.NoError(t, err)
	other, err := json.Marshal(map[string]any{"id": "new/1/x", "host": "new", "pid": 1, "ttl": 60_000, "at": now.UnixMilli(), "version": "v9.9.9"})
	require.NoError(t, err)
	require.NoError(t, o.rdb.Set(ctx, t.Name()+":ops:{fleet}:process:new/1/x", other, time.Minute).Err())
	require.NoError(t, o.rdb.ZAdd(ctx, t.Name()+":ops:{fleet}:processes", redis.Z{Score: float64(now.Add(time.Minute).UnixMilli()), Member: "new/1/x"}).Err())

	// Both say what is wrong, within a minute.
	ill := map[string]string{
		"long_holds": "2 keys are held for longer than usual while others wait.", "no_worker": "Queue mail: 1 message is due, and no worker is seen.",
		"dead": "Queue ship has 5 dead letters, and they grow.", "eviction": "may evict the records of held keys.", "versions": "2 versions of perkey run side by side.",
	}
	has := func(text string) bool {
		for _, finding := range ill {
			if !strings.Contains(text, finding) {
				return false
			}
		}
		return true
	}
	began, doctor, page := time.Now(), "", ""
	redistest.Eventually(t, func() bool {
		status, found := o.perkey("doctor", "-o", "json")
		doctor = found
		return has(doctor) && status == exitFound
	}, "the doctor finds all")
	redistest.Eventually(t, func() bool { page = html.UnescapeString(o.page("")); return has(page) }, "the console shows all")
	t.Logf("all is found %s after it began", time.Since(began).Round(100*time.Millisecond))
	for _, of := range []string{doctor, strings.ReplaceAll(page, "&#34;", `"`)} {
		assert.Contains(t, of, "order:hang-1")
		assert.Contains(t, of, "order:hang-2")
	}
	assert.Contains(t, page, "messages queued after them: 2")
	for kind := range ill {
		assert.Contains(t, doctor, `"kind":"`+kind+`"`)
	}

	// One key is freed from the console, the other by the command: the work that was parked for them runs.
	o.change(o.follow(o.follow("", "key?key=order%3Ahang-1"), "change?do=unlock"))
	redistest.Eventually(t, func() bool { return o.says("lost order:hang-1") }, "its holder learns of it")
	_, out := o.perkey("show", "order:hang-2", "-o", "json")
	var shown struct {
		Holders []struct{ Fence int64 }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &shown), out)
	status, out := o.perkey("unlock", "order:hang-2", "--fence", fmt.Sprint(shown.Holders[0].Fence), "--reason", "INC-2")
	require.Equal(t, exitOK, status, out)
	redistest.Eventually(t, func() bool { return o.says("lost order:hang-2") }, "its holder learns of it")
	for _, id := range []string{"parked-1", "parked-2"} {
		redistest.Eventually(t, func() bool {
			s, err := queues["ship"].Status(ctx, id)
			return err == nil && s.State == delayqueue.StateDone
		}, id+" runs")
	}

	// The cards are mended, and their messages redriven: not those of the other cause.
	require.NoError(t, o.rdb.Set(ctx, t.Name()+"-mended", 1, 0).Err())
	redistest.Eventually(t, func() bool { return strings.Contains(o.page("dead"), "card declined") }, "the page has the cause")
	o.change(o.follow(o.follow("dead", "dead?queue=ship&amp;name=charge&amp;cause=card"), "change?do=redrive"))
	redistest.Eventually(t, func() bool {
		s, err := queues["ship"].Stats(ctx)
		return err == nil && s.Dead == 2 && s.Queued+s.Running == 0
	}, "the three are done, the two are left")

	// What was found is gone, but for what nobody has mended, and the audit has who did what.
	require.NoError(t, o.rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	gone := func(text string) bool {
		return !strings.Contains(text, "held for longer") && !strings.Contains(text, "may evict") && strings.Contains(text, "Queue ship has 2 dead letters")
	}
	redistest.Eventually(t, func() bool { _, doctor = o.perkey("doctor", "-o", "json"); return gone(doctor) }, "the doctor sees it")
	redistest.Eventually(t, func() bool { return gone(o.page("")) }, "the console sees it")
	_, audited := o.perkey("audit", "ls", "-o", "json")
	redistest.Eventually(t, func() bool { page = o.page("audit"); return strings.Contains(page, "redrive") }, "the console shows the audit")
	for _, of := range []string{audited, page} {
		for _, part := range []string{"unlock", "order:hang-1", "order:hang-2", "taken from its holder", "INC-1", "INC-2", "redrive", "3 done", "ann"} {
			assert.Contains(t, of, part)
		}
	}
}
