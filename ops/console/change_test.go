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

func TestConsole_IsReadOnlyUnlessToldOtherwise(t *testing.T) {
	for name, change := range map[string]func(*console.Options){
		"by default": nil, "with authorization alone": func(o *console.Options) { o.Authorize = everyone },
		"whom Authorize refuses": func(o *console.Options) {
			o.Changes, o.Authorize = true, func(_ *http.Request, do ops.Action) (string, error) {
				if do != console.View {
					return "", errors.New("secret reason")
				}
				return "eve", nil
			}
		},
		"who is nobody": func(o *console.Options) {
			o.Changes, o.Authorize = true, func(*http.Request, ops.Action) (string, error) { return "", nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := redistest.Embedded(t)
			server, locker := newConsole(t, env, change)
			lease := testbed.Take(t, locker, "k")
			q := testbed.NewQueue(t, env.Client(t), "q", delayqueue.WithPrefix(env.Prefix))
			testbed.Enqueue(t, q, delayqueue.Job{ID: "m", Key: "other"})
			for _, form := range [][]string{
				{"do", "unlock", "key", "k", "fence", fmt.Sprint(lease.Fence())}, {"do", "cancel", "queue", "q", "id", "m"}, {"do", "pause", "queue", "q", "minutes", "5"},
			} {
				code, body := post(t, server.URL+"/change", nil, append(form, "why", "because")...)
				assert.Contains(t, []int{http.StatusForbidden, http.StatusMethodNotAllowed}, code, form)
				assert.NotContains(t, body, "secret reason")
			}
			for _, page := range pages {
				code, _ := post(t, server.URL+"/"+page, nil)
				assert.Equal(t, http.StatusMethodNotAllowed, code, page)
			}
			require.NoError(t, lease.Context().Err())
			status, err := q.Status(t.Context(), "m")
			require.NoError(t, err)
			assert.Equal(t, delayqueue.StateQueued, status.State)
		})
	}
}

func TestConsole_ChangesNameWhatWasSeen(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		server, locker := newConsole(t, env, func(o *console.Options) { o.Changes, o.Authorize = true, everyone })
		lease := testbed.Take(t, locker, "k")
		unlock := func(fence int64, header http.Header, why string) (int, string) {
			return post(t, server.URL+"/change", header, "do", "unlock", "key", "k", "fence", fmt.Sprint(fence), "why", why)
		}
		for name, header := range map[string]http.Header{
			"another site": {"Sec-Fetch-Site": {"cross-site"}}, "another host of the site": {"Sec-Fetch-Site": {"same-site"}}, "another origin": {"Origin": {"https://evil.example"}},
		} {
			code, _ := unlock(lease.Fence(), header, "why")
			assert.Equal(t, http.StatusForbidden, code, name)
		}
		code, body := unlock(lease.Fence(), nil, " ")
		assert.Equal(t, http.StatusBadRequest, code, body)
		code, body = unlock(lease.Fence()-1, nil, "why")
		assert.Equal(t, http.StatusConflict, code)
		assert.Contains(t, body, "It changed while you looked")
		assert.Contains(t, body, fmt.Sprint(lease.Fence()), "what is true now")
		require.NoError(t, lease.Context().Err())
		_, _, _ = get(t, server.URL+"/change?do=unlock&key=k&why=link&fence="+fmt.Sprint(lease.Fence()))
		code, _ = post(t, server.URL+"/change?do=unlock&key=k&why=link&fence="+fmt.Sprint(lease.Fence()), nil)
		assert.NotEqual(t, http.StatusOK, code, "a link changes nothing")
		require.NoError(t, lease.Context().Err())
		code, body = unlock(lease.Fence(), http.Header{"Sec-Fetch-Site": {"same-origin"}}, "INC-1")
		assert.Equal(t, http.StatusOK, code, body)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		_, body, _ = get(t, server.URL+"/audit")
		assert.Contains(t, body, "INC-1")
		assert.Contains(t, body, "refused: held by")
	})
}

func TestConsole_BulkChangesCountFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		server, locker := newConsole(t, env, func(o *console.Options) { o.Changes, o.Authorize = true, everyone })
		q := testbed.NewQueue(t, env.Client(t), "q", delayqueue.WithPrefix(env.Prefix))
		for i := range 3 {
			testbed.Enqueue(t, q, delayqueue.Job{ID: fmt.Sprint("m", i), Name: "n", Payload: []byte("secret-payload")})
		}
		die(t, q, locker, "the cause")
		_, body, _ := get(t, server.URL+"/dead")
		assert.Contains(t, body, "the cause")
		_, body, _ = get(t, server.URL+"/change?do=redrive&queue=q&name=n&cause=the+cause")
		assert.Contains(t, body, "&amp;count=3&amp;")
		code, body := post(t, server.URL+"/change", nil, "do", "redrive", "queue", "q", "name", "n", "cause", "the cause", "count", "2", "why", "w")
		assert.Equal(t, http.StatusConflict, code, body)
		code, body = post(t, server.URL+"/change", nil, "do", "purge", "queue", "q", "id", "m0", "why", "w")
		assert.Equal(t, http.StatusOK, code, body)
		code, body = post(t, server.URL+"/change", nil, "do", "purge", "queue", "q", "id", "m0", "why", "w")
		assert.Equal(t, http.StatusConflict, code, body)
		code, body = post(t, server.URL+"/change", nil, "do", "redrive", "queue", "q", "name", "n", "cause", "the cause", "count", "2", "rate", "100", "why", "w")
		assert.Equal(t, http.StatusOK, code, body)
		s, err := q.Stats(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 2, s.Queued)
		// Without the number of what was seen nothing is chosen but nothing.
		code, _ = post(t, server.URL+"/change", nil, "do", "cancel", "queue", "q", "why", "w")
		assert.Equal(t, http.StatusBadRequest, code)
		code, _ = post(t, server.URL+"/change", nil, "do", "pause", "queue", "gone", "minutes", "5", "why", "w")
		assert.Equal(t, http.StatusNotFound, code)
		code, body = post(t, server.URL+"/change", nil, "do", "pause", "queue", "q", "minutes", "5", "why", "w")
		assert.Equal(t, http.StatusOK, code, body)
		_, body, _ = get(t, server.URL+"/queue?queue=q")
		assert.Contains(t, body, "paused until")
	})
}

// A queue of the Options is the one that is changed, though there is one of its name on the Locker's Redis.
func TestConsole_ChangesTheQueueThatItShows(t *testing.T) {
	here, there := redistest.Embedded(t), redistest.Embedded(t)
	queue := func(rdb redis.UniversalClient) *delayqueue.Queue {
		q := testbed.NewQueue(t, rdb, "q", delayqueue.WithPrefix(here.Prefix))
		testbed.Enqueue(t, q, delayqueue.Job{ID: "m", Key: "k"})
		return q
	}
	elsewhere := redistest.Client(t, &redis.Options{Addr: there.Addr})
	same, other := queue(here.Client(t)), queue(elsewhere)
	server, locker := newConsole(t, here, func(o *console.Options) {
		o.Changes, o.Authorize, o.Queues = true, everyone, []*delayqueue.Queue{other}
	})
	die(t, other, locker, "the cause")
	change := func(do string, values ...string) {
		t.Helper()
		code, body := post(t, server.URL+"/change", nil, append([]string{"do", do, "queue", "q", "why", "w"}, values...)...)
		assert.Equal(t, http.StatusOK, code, body)
	}
	change("pause", "minutes", "5")
	change("redrive", "count", "1", "cause", "the cause")
	change("cancel", "id", "m")
	status, err := other.Status(t.Context(), "m")
	require.NoError(t, err)
	assert.Equal(t, delayqueue.StateCancelled, status.State)
	stats, err := other.Stats(t.Context())
	require.NoError(t, err)
	assert.True(t, stats.Paused)
	stats, err = same.Stats(t.Context())
	require.NoError(t, err)
	assert.False(t, stats.Paused)
	assert.EqualValues(t, 1, stats.Queued)
	_, body, _ := get(t, server.URL+"/audit")
	assert.Contains(t, body, "paused", "the audit is where the Locker is")
}

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
	server, locker := newConsole(t, redistest.Embedded(t), viewers(&may))
	testbed.Take(t, locker, "k2")
	for _, page := range append(pages, "nothing", "change", "keys?prefix=k") {
		code, body, _ := get(t, server.URL+"/"+page)
		assert.Equal(t, http.StatusForbidden, code, page)
		assert.NotContains(t, body, "k2", page)
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
