package console_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
)

// watched are the watches that are registered.
func watched(t testing.TB, rdb *redis.Client, prefix string) []string {
	t.Helper()
	all, err := rdb.ZRange(t.Context(), prefix+":ops:{fleet}:watches", 0, -1).Result()
	require.NoError(t, err)
	return all
}

// Nobody has anything watched whom Authorize was not asked about, and whom it does not allow that.
func TestConsole_WatchesForWhomThatIsAllowed(t *testing.T) {
	var asks atomic.Int64
	for name, c := range map[string]struct {
		change func(*console.Options)
		may    bool
	}{
		"by default": {nil, false},
		"refused": {func(o *console.Options) {
			o.Authorize = func(_ *http.Request, do ops.Action) (string, error) {
				if do == console.View {
					return "eve", nil
				}
				return "", errors.New("no")
			}
		}, false},
		"refused, with changes": {func(o *console.Options) {
			o.Changes, o.Authorize = true, func(_ *http.Request, do ops.Action) (string, error) {
				if do == console.Watch {
					return "", errors.New("no")
				}
				return "eve", nil
			}
		}, false},
		"allowed, without changes": {func(o *console.Options) {
			o.Authorize = func(_ *http.Request, do ops.Action) (string, error) {
				if do == console.Watch {
					asks.Add(1)
				}
				return "ada", nil
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			env := redistest.Embedded(t)
			server, _ := newConsole(t, env, c.change)
			_, body, _ := get(t, server.URL+"/key?key=k")
			assert.Equal(t, c.may, strings.Contains(body, `action="watch?key=k"`))
			code, _, _ := get(t, server.URL+"/watch?key=k")
			assert.Equal(t, http.StatusNotFound, code, "a link watches nothing")
			code, _ = post(t, server.URL+"/watch?key=k", http.Header{"Sec-Fetch-Site": {"cross-site"}})
			assert.Equal(t, http.StatusForbidden, code)
			assert.Empty(t, watched(t, env.Client(t), env.Prefix))
			code, body = post(t, server.URL+"/watch?key=k", nil)
			if !c.may {
				assert.Equal(t, http.StatusForbidden, code)
				assert.Empty(t, watched(t, env.Client(t), env.Prefix))
				return
			}
			assert.Equal(t, http.StatusOK, code, "it leads to the key's page")
			assert.Contains(t, body, "Watched until")
			assert.Len(t, watched(t, env.Client(t), env.Prefix), 1)
			assert.Positive(t, asks.Load())
			_, _ = post(t, server.URL+"/watch?key=k", nil)
			assert.Len(t, watched(t, env.Client(t), env.Prefix), 1, "it is watched once")
			code, _ = post(t, server.URL+"/watch?key=", nil)
			assert.Equal(t, http.StatusBadRequest, code)
			redistest.Eventually(t, func() bool { return len(watched(t, env.Client(t), env.Prefix)) == 0 }, "nobody looks any more")
		})
	}
}

// What happens to a key is on its page as it happens, for all who look at it, with one watch.
func TestConsole_ShowsWhatHappensToAWatchedKey(t *testing.T) {
	env := redistest.Real(t)
	rdb := env.Client(t)
	locker := newReportingLocker(t, rdb, env.Prefix)
	server, _ := newConsole(t, env, func(o *console.Options) { o.Authorize = everyone })
	key := "order:\xff<1>"
	code, body := post(t, server.URL+"/watch?key="+url.QueryEscape(key), nil)
	require.Equal(t, http.StatusOK, code, body)
	resp := stream(t.Context(), t, server.URL+"/key?key="+url.QueryEscape(key))
	began := time.Now()
	go func() {
		for i := 0; time.Since(began) < 20*time.Second && t.Context().Err() == nil; i++ {
			if lease, err := locker.Acquire(t.Context(), key, core.Named(fmt.Sprint("work ", i), "req-1")); err == nil {
				_ = lease.Release(t.Context())
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	lines, last, frames, first := bufio.NewScanner(resp.Body), "", []string{}, time.Time{}
	lines.Buffer(nil, 1<<20)
	for len(frames) < 4 && lines.Scan() {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "retry:"):
			if strings.Contains(last, "req-1") {
				if frames = append(frames, last); len(frames) == 1 {
					first = time.Now()
				}
			}
			last = ""
		default:
			last += line
		}
	}
	require.Len(t, frames, 4)
	assert.Less(t, time.Since(first), 3*2*time.Second, "sooner than a page is brought up to date otherwise")
	assert.Contains(t, frames[3], ">acquired<")
	assert.Contains(t, frames[3], ">released<")
	assert.NotContains(t, frames[3], "tag look", "nothing needs a person")
	_, body, _ = get(t, server.URL+"/key?key="+url.QueryEscape(key))
	assert.Contains(t, body, "req-1", "without scripts a page that is loaded has it")
	assert.Len(t, watched(t, rdb, env.Prefix), 1)
	_, body, _ = get(t, server.URL+"/key?key=other")
	assert.NotContains(t, body, "req-1")
}
