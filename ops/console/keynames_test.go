package console_test

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
)

var addresses = regexp.MustCompile(`(?:href|action)="([^"]*)"`)

// With a KeySecret no page and no address that a page leads to has a key in it, and all that is done by keys still works.
// It is long since it is one story.
func TestConsole_KeysAsHashes(t *testing.T) {
	env := redistest.Real(t)
	rdb := env.Client(t)
	holder := newReportingLocker(t, rdb, env.Prefix)
	const key, lost, dead = "patient:mustermann", "patient:lost-lease", "patient:dead-letter"
	keys := []string{key, lost, dead, "patient"}
	secret := []byte(strings.Repeat("s", 32))
	server, locker := newConsole(t, env, func(o *console.Options) { o.Changes, o.Authorize, o.KeySecret = true, everyone, secret })

	q := testbed.NewQueue(t, rdb, "q", delayqueue.WithPrefix(env.Prefix))
	testbed.Enqueue(t, q, delayqueue.Job{ID: "d", Key: dead})
	die(t, q, locker, "the cause")
	lease := testbed.Take(t, holder, key, core.Named("work", "req-1"))
	testbed.Enqueue(t, q, delayqueue.Job{ID: "m", Key: key})
	testbed.Take(t, holder, lost)
	require.NoError(t, rdb.Del(t.Context(), env.Prefix+":lock{}:"+lost).Err())
	go func() { _, _ = holder.Acquire(t.Context(), key) }() // it is hot, and waited for
	audit, err := ops.NewAudit(rdb, env.Prefix, nil)
	require.NoError(t, err)
	operator, err := ops.NewOperator(locker, audit)
	require.NoError(t, err)
	require.ErrorIs(t, operator.Unlock(t.Context(), ops.By{Who: "w", Why: "y"}, key, 7), ops.ErrChanged)
	_, err = operator.Purge(t.Context(), ops.By{Who: "w", Why: "y"}, ops.Messages{Queue: "q", Filter: delayqueue.Filter{Key: key}})
	require.NoError(t, err)
	redistest.Eventually(t, func() bool {
		_, body, _ := get(t, server.URL+"/")
		return strings.Contains(body, "lease was lost") && strings.Contains(body, "waits")
	}, "the process tells")

	submit := func(page string, values ...string) (string, string) {
		t.Helper()
		resp, err := http.PostForm(server.URL+"/"+page, url.Values{values[0]: {values[1]}})
		require.NoError(t, err)
		defer resp.Body.Close()
		_, body, _ := get(t, resp.Request.URL.String())
		return resp.Request.URL.RequestURI(), body
	}
	at, body := submit("key", "key", key)
	assert.Contains(t, body, "req-1", "the box finds a key")
	name := regexp.MustCompile(`#[0-9a-f]{16}`).FindString(body)
	require.NotEmpty(t, name)
	searched, body := submit("keys", "prefix", "patient:")
	assert.Contains(t, body, name, "and so does a search")
	code, _ := post(t, server.URL+"/watch?"+strings.SplitN(at, "?", 2)[1], nil)
	assert.Equal(t, http.StatusOK, code)

	seen, todo := map[string]bool{}, append([]string{"/", at, searched}, "/keys", "/audit", "/dead", "/queue?queue=q", "/message?queue=q&id=m")
	names := 0
	for len(todo) > 0 && len(seen) < 200 {
		address := todo[0]
		if todo = todo[1:]; seen[address] {
			continue
		}
		seen[address] = true
		_, body, _ := get(t, server.URL+address)
		for _, key := range keys {
			assert.NotContains(t, strings.ReplaceAll(address, env.Prefix, ""), key)
			assert.NotContains(t, html.UnescapeString(body), key, address)
		}
		names += strings.Count(body, name)
		for _, link := range addresses.FindAllStringSubmatch(body, -1) {
			if to := html.UnescapeString(link[1]); !strings.HasPrefix(to, "https:") && !strings.HasPrefix(to, "#") {
				to = strings.TrimPrefix(to, "./")
				todo = append(todo, "/"+to)
			}
		}
	}
	assert.Greater(t, names, 10, "pages name the key alike")
	assert.Greater(t, len(seen), 15)

	for _, strange := range []string{key, "x", strings.Repeat("A", 40)} {
		code, _, _ := get(t, server.URL+"/key?key="+url.QueryEscape(strange))
		assert.Equal(t, http.StatusBadRequest, code)
	}
	other, _ := newConsole(t, env, func(o *console.Options) { o.KeySecret = secret })
	_, body, _ = get(t, other.URL+at)
	assert.Contains(t, body, name, "a replica has the same addresses")
	_, body, _ = get(t, server.URL+at)
	link := regexp.MustCompile(`href="(change[^"]*)"`).FindStringSubmatch(body)
	require.NotNil(t, link, body)
	_, body, _ = get(t, server.URL+"/"+html.UnescapeString(link[1]))
	form := action.FindStringSubmatch(body)
	require.NotNil(t, form, body)
	code, body = post(t, server.URL+"/"+html.UnescapeString(form[1]), nil, "why", "w")
	assert.Equal(t, http.StatusOK, code, body)
	require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
	_, body, _ = get(t, server.URL+"/audit")
	assert.Contains(t, body, "taken from its holder")
	assert.NotContains(t, body, key)

	_, err = console.New(console.Options{Locker: locker, Redis: rdb, KeySecret: []byte("short")})
	require.ErrorIs(t, err, core.ErrInvalidOption)
}
