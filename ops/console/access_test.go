package console_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
)

// viewers lets people see all while may is true.
func viewers(may *atomic.Bool) func(*console.Options) {
	return func(o *console.Options) {
		o.Authorize = func(*http.Request, ops.Action) (string, error) {
			if !may.Load() {
				return "", errors.New("no")
			}
			return "ada", nil
		}
	}
}

func TestConsole_AsksWhoItIsFirst(t *testing.T) {
	var may atomic.Bool
	server, _ := newConsole(t, redistest.Embedded(t), viewers(&may))
	for _, page := range append(pages, "nothing", "change", "keys?prefix=k") {
		code, _, _ := get(t, server.URL+"/"+page)
		assert.Equal(t, http.StatusForbidden, code, page)
		code, _ = post(t, server.URL+"/"+page, nil)
		assert.Equal(t, http.StatusForbidden, code, page)
	}
}

func TestConsole_StreamsEndWithTheRightToSeeThem(t *testing.T) {
	var may atomic.Bool
	may.Store(true)
	server, _ := newConsole(t, redistest.Embedded(t), viewers(&may))
	lines, events := bufio.NewScanner(stream(t.Context(), t, server.URL+"/keys").Body), 0
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "retry:") {
			events++
			may.Store(false)
		}
	}
	assert.Equal(t, 1, events)
}

var action = regexp.MustCompile(`action="(change[^"]*)" method="post"`)

// A browser makes U+FFFD of bytes that are not UTF-8, in fields of forms too.
func TestConsole_UnlocksKeysOfAnyBytes(t *testing.T) {
	env := redistest.Embedded(t)
	server, locker := newConsole(t, env, func(o *console.Options) { o.Changes, o.Authorize = true, everyone })
	for _, key := range []string{"order:\xff\xfe", `"><b>&amp;%2F+ ?#`, "\u202egnp"} {
		lease := testbed.Take(t, locker, key)
		_, body, _ := get(t, fmt.Sprintf("%s/change?do=unlock&key=%s&fence=%d", server.URL, url.QueryEscape(key), lease.Fence()))
		form := action.FindStringSubmatch(strings.ToValidUTF8(body, "\ufffd"))
		require.NotNil(t, form, body)
		code, body := post(t, server.URL+"/"+html.UnescapeString(form[1]), nil, "why", "w")
		assert.Equal(t, http.StatusOK, code, body)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost, "%q", key)
	}
}

func TestConsole_SaysWhatItDoesNotKnow(t *testing.T) {
	env := redistest.Real(t)
	proxy := redistest.NewProxy(t, env.Addr)
	proxy.Refuse(true)
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: -1})
	server, _ := newConsole(t, env, func(o *console.Options) { o.Locker, o.Redis = newLocker(t, rdb, env.Prefix), rdb })
	for _, page := range append(pages, "process?id=p") {
		_, body, _ := get(t, server.URL+"/"+page)
		for _, claim := range []string{"There is no", "There are none", "No process", "Nothing ", "No call", "Good"} {
			assert.NotContains(t, body, claim, page)
		}
	}
}

func TestConsole_SurvivesAPanicOfALogger(t *testing.T) {
	env := redistest.Embedded(t)
	server, _ := newConsole(t, env, func(o *console.Options) {
		o.Changes, o.Authorize, o.Log = true, everyone, slog.New(panics{slog.DiscardHandler})
	})
	_ = testbed.NewQueue(t, env.Client(t), "q", delayqueue.WithPrefix(env.Prefix))
	code, body := post(t, server.URL+"/change", nil, "do", "pause", "queue", "q", "minutes", "5", "why", "w")
	assert.Equal(t, http.StatusInternalServerError, code, body)
}

type panics struct{ slog.Handler }

func (panics) Enabled(context.Context, slog.Level) bool  { return true }
func (panics) Handle(context.Context, slog.Record) error { panic("it breaks") }

func TestServe_LeavesNoRequestBehind(t *testing.T) {
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	begun, ended := make(chan struct{}), make(chan struct{})
	o := console.Options{Locker: newLocker(t, rdb, env.Prefix), Redis: rdb, Authorize: func(r *http.Request, _ ops.Action) (string, error) {
		close(begun)
		<-r.Context().Done()
		close(ended)
		return "", r.Context().Err()
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ready, served := make(chan net.Addr, 1), make(chan error, 1)
	go func() { served <- console.Serve(ctx, "127.0.0.1:0", o, func(a net.Addr) { ready <- a }) }()
	addr := <-ready
	go func() {
		if resp, err := http.Get("http://" + addr.String() + "/keys"); err == nil {
			resp.Body.Close()
		}
	}()
	<-begun
	cancel()
	require.ErrorIs(t, <-served, context.DeadlineExceeded)
	<-ended
}

// Each page is read with the rights that docs/operations.md prints.
func TestConsole_SmallestRights(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	redistest.AddUser(t, admin, "console", redistest.Rights(t, "locks", "locks of parked work, Inspect", "List", "queues", "Idempotency-Keys",
		"ops.Audit", "ops.ReadFleet", "a console"))
	holder := newLocker(t, admin, "perkey")
	testbed.Take(t, holder, "k", core.Shared())
	q := testbed.NewQueue(t, admin, "q")
	testbed.Enqueue(t, q, delayqueue.Job{ID: "m", Key: "k"})
	env := &redistest.Env{Addr: admin.Options().Addr, Prefix: "perkey"}
	server, _ := newConsole(t, env, func(o *console.Options) {
		rdb := redistest.Client(t, &redis.Options{Addr: env.Addr, Username: "console", Password: redistest.Password})
		o.Locker, o.Redis = newLocker(t, rdb, "perkey"), rdb
	})
	for _, page := range append(pages, "keys?prefix=k", "queue?queue=q", "message?queue=q&id=m", "idempotency?route=a&idempotency-key=b") {
		code, body, _ := get(t, server.URL+"/"+page)
		assert.Equal(t, http.StatusOK, code, page)
		assert.NotContains(t, body, "Not up to date", page)
	}
	assert.Empty(t, redistest.Denied(t, admin))
	redistest.RequireUsed(t, admin, redistest.Rights(t, "a console"), nil)
}
