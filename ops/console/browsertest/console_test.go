package browsertest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
)

// operators lets everybody do everything.
func operators(o *console.Options) {
	o.Changes, o.Authorize = true, func(*http.Request, ops.Action) (string, error) { return "ada", nil }
}

// screens are all pages, with what each must show.
func screens(t testing.TB, s *service) map[string]string {
	t.Helper()
	letters, _, err := s.ship.List(t.Context(), "dead", "", 1)
	require.NoError(t, err)
	require.NotEmpty(t, letters)
	fleet, err := ops.ReadFleet(t.Context(), s.rdb, s.prefix)
	require.NoError(t, err)
	require.NotEmpty(t, fleet.Processes)
	return map[string]string{
		"": "Exclusion", "keys": "Longest waits", "key?key=order:4711": "POST /orders/:id/ship", "keys?prefix=order": "found in", "queues": "Slots busy",
		"queue?queue=ship": "Slots busy", "dead": "card declined", "message?queue=ship&id=" + letters[0].ID: "dead", "processes": "Last report",
		"process?id=" + url.QueryEscape(fleet.Processes[0].ID): "Calls, by name of work", "audit": "operator",
		"idempotency?route=POST+/payments&principal=user-7&idempotency-key=pay-1": "Ran",
		"change?do=redrive&queue=ship&name=fail+card&cause=card":                  "Dead letters now",
		fmt.Sprintf("change?do=unlock&key=order:4711&fence=%d", s.held.Fence()):   "Unlock the key",
	}
}

// complaints watches what a tab complains of: errors of scripts, and what the Content-Security-Policy refuses.
func complaints(ctx context.Context) func() []string {
	var mu sync.Mutex
	var all []string
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			mu.Lock()
			all = append(all, m.String())
			mu.Unlock()
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func eval[T any](t testing.TB, ctx context.Context, script string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	require.NoError(t, err)
	return v
}

// text is what a page says, when it is loaded.
func text(t testing.TB, ctx context.Context) (shown string) {
	t.Helper()
	redistest.Eventually(t, func() bool {
		shown = eval[string](t, ctx, `document.querySelector("main")?.innerText ?? ""`) // in one step: a live page changes
		return shown != ""
	}, "a page")
	return shown
}

func visit(t testing.TB, ctx context.Context, url string) {
	t.Helper()
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url)))
}

func TestConsole_EachScreenAtEachSize(t *testing.T) {
	env := redistest.Real(t)
	s := newService(t, env.Client(t), env.Prefix, operators, hostile...)
	s.settled(t)
	all := screens(t, s)
	for _, at := range sizes {
		for scheme, dark := range map[string]bool{"light": false, "dark": true} {
			t.Run(at.name+" "+scheme, func(t *testing.T) {
				ctx := tab(t, at, dark, true)
				said := complaints(ctx)
				for path, want := range all {
					visit(t, ctx, s.url+path)
					shown := text(t, ctx)
					assert.Contains(t, shown, want, path)
					assert.NotContains(t, shown, "secret-", "a payload or a stored response")
					over := eval[int](t, ctx, `document.documentElement.scrollWidth - innerWidth`)
					assert.LessOrEqual(t, over, 0, "%s is wider than the screen", path)
					cut := eval[string](t, ctx, `[...document.querySelectorAll("nav a")].filter(a => a.getBoundingClientRect().right > a.parentNode.getBoundingClientRect().right).map(a => a.textContent).join()`)
					assert.Empty(t, cut, "%s: pages whose links are cut off", path)
					background := eval[string](t, ctx, `getComputedStyle(document.body).backgroundColor`)
					assert.Equal(t, dark, strings.HasPrefix(background, "rgb(2"+"1,"), "%s: %s", path, background)
					named(t, ctx, path)
				}
				assert.Empty(t, said())
			})
		}
	}
}

// named checks that whatever can be used has a name, and each name of a control is its own.
func named(t testing.TB, ctx context.Context, path string) {
	t.Helper()
	tree, err := chromedp.Call(ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	require.NoError(t, err)
	headings := 0
	for _, n := range tree.Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		role, name := fmt.Sprint(string(n.Role.Value)), ""
		if n.Name != nil {
			name = strings.Trim(string(n.Name.Value), `"`)
		}
		switch strings.Trim(role, `"`) {
		case "link", "button", "textbox", "searchbox", "combobox", "table", "image", "img", "navigation", "search":
			assert.NotEmpty(t, name, "%s: a %s has no name", path, role)
		case "heading":
			headings++
		}
	}
	assert.Positive(t, headings, path)
	assert.Equal(t, 1, eval[int](t, ctx, `document.querySelectorAll("h1").length`), path)
	assert.Empty(t, eval[string](t, ctx, `[...document.querySelectorAll("[id]")].map(e => e.id).filter((id, i, all) => all.indexOf(id) !== i).join()`), path)
}

func TestConsole_WorksWithoutScripts(t *testing.T) {
	env := redistest.Real(t)
	s := newService(t, env.Client(t), env.Prefix, operators, hostile...)
	s.settled(t)
	ctx := tab(t, sizes[1], false, false)
	for path, want := range screens(t, s) {
		visit(t, ctx, s.url+path)
		assert.Contains(t, text(t, ctx), want, path)
	}
	// A key is found, taken from its holder, and that is in the audit, with nothing but links and forms.
	visit(t, ctx, s.url)
	require.NoError(t, chromedp.Do(ctx,
		chromedp.SendKeys(chromedp.CSS("#find"), "order:4711"), chromedp.Submit(chromedp.CSS("#find")), chromedp.WaitVisible(chromedp.CSS(".button.small")),
		chromedp.Click(chromedp.CSS(".button.small")), chromedp.WaitVisible(chromedp.CSS("#why")),
		chromedp.SendKeys(chromedp.CSS("#why"), "it hangs"), chromedp.Click(chromedp.CSS("button.do")), chromedp.WaitNotPresent(chromedp.CSS("#why")),
	))
	assert.Contains(t, text(t, ctx), "It was done")
	assert.ErrorIs(t, context.Cause(s.held.Context()), core.ErrLeaseLost)
	visit(t, ctx, s.url+"audit")
	assert.Contains(t, text(t, ctx), "it hangs")
}

func TestConsole_HostileTextsAreText(t *testing.T) {
	env := redistest.Real(t)
	s := newService(t, env.Client(t), env.Prefix, operators, hostile...)
	s.settled(t)
	ctx := tab(t, sizes[1], false, true)
	said := complaints(ctx)
	var dialogs sync.Map
	require.NoError(t, chromedp.Listen(ctx, func(e any) {
		if _, ok := e.(*page.EventJavascriptDialogOpening); ok {
			dialogs.Store("one", true)
		}
	}))
	visit(t, ctx, s.url+"keys")
	for _, key := range hostile {
		// Its link leads to its page, whatever its bytes are. The three processes tell of their keys one after the other.
		link := `[...document.querySelectorAll("main a.key")].find(a => a.getAttribute("href") === ` + fmt.Sprintf("%q", "key?key="+url.QueryEscape(key)) + `)`
		redistest.Eventually(t, func() bool { return eval[bool](t, ctx, link+" !== undefined") }, "a link to "+key)
	}
	for _, key := range hostile {
		visit(t, ctx, s.url+"key?key="+url.QueryEscape(key))
		shown := text(t, ctx)
		assert.Contains(t, shown, "Held", "%q", key)
		assert.Contains(t, shown, "<i>work</i>")
		assert.NotContains(t, eval[string](t, ctx, `document.title`), "owned")
		assert.Zero(t, eval[int](t, ctx, `document.querySelectorAll("main script, main img, main b").length`))
	}
	visit(t, ctx, s.url+"key?key="+url.QueryEscape(hostile[0]))
	assert.Contains(t, text(t, ctx), hostile[0])
	visit(t, ctx, s.url+"key?key="+url.QueryEscape(hostile[2]))
	assert.Contains(t, text(t, ctx), `order:\xff\xfe\x80?&#%2F/../\u202egnp.exe`)
	visit(t, ctx, s.url+"dead")
	assert.Contains(t, text(t, ctx), "<h1>502 Bad Gateway</h1>")
	_, opened := dialogs.Load("one")
	assert.False(t, opened)
	assert.Empty(t, said())
}

func TestConsole_StaysUpToDateAndSaysWhenNot(t *testing.T) {
	env := redistest.Real(t)
	s := newService(t, env.Client(t), env.Prefix, nil)
	proxy := redistest.NewProxy(t, strings.TrimPrefix(s.server.URL, "http://"))
	ctx := tab(t, sizes[1], false, true)
	visit(t, ctx, "http://"+proxy.Addr+"/key?key=fresh")
	live := func(want string) {
		t.Helper()
		redistest.Eventually(t, func() bool {
			return strings.HasPrefix(eval[string](t, ctx, `document.getElementById("live").textContent`), want)
		}, want)
	}
	live("Live")
	assert.Contains(t, text(t, ctx), "Nobody holds it")
	// What somebody types stays while the page changes.
	slash(t, ctx)
	require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent("half a k")))
	lease, err := s.lockers[1].Acquire(t.Context(), "fresh", core.Named("new work", ""))
	require.NoError(t, err)
	redistest.Eventually(t, func() bool { return strings.Contains(text(t, ctx), "new work") }, "the page shows the holder")
	assert.Equal(t, "find", eval[string](t, ctx, `document.activeElement.id`))
	assert.Equal(t, "half a k", eval[string](t, ctx, `document.activeElement.value`))

	proxy.Refuse(true)
	proxy.Cut()
	live("Not live since")
	require.NoError(t, lease.Release(t.Context()))
	proxy.Refuse(false)
	redistest.Eventually(t, func() bool { return strings.Contains(text(t, ctx), "Nobody holds it") }, "it comes back by itself")
	live("Live")
}

// slash presses the key, as a browser gets it: what it does by itself can be prevented.
func slash(t testing.TB, ctx context.Context) {
	t.Helper()
	for _, event := range []input.DispatchKeyEventParams{
		{Type: input.DispatchKeyEventTypeKeyDown, Key: "/", Code: "Slash", Text: "/"}, {Type: input.DispatchKeyEventTypeKeyUp, Key: "/", Code: "Slash"},
	} {
		_, err := chromedp.Call(ctx, input.DispatchKeyEvent, event)
		require.NoError(t, err)
	}
}

func TestConsole_Keyboard(t *testing.T) {
	env := redistest.Real(t)
	s := newService(t, env.Client(t), env.Prefix, operators, hostile...)
	ctx := tab(t, sizes[1], false, true)
	visit(t, ctx, s.url)
	// The first stop leads past the header, and each stop can be seen.
	require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent(kb.Tab)))
	assert.Equal(t, "To the content", eval[string](t, ctx, `document.activeElement.textContent`))
	var stops []string
	for range 14 {
		require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent(kb.Tab)))
		assert.NotEqual(t, "none", eval[string](t, ctx, `getComputedStyle(document.activeElement).outlineStyle`))
		stops = append(stops, eval[string](t, ctx, `document.activeElement.id || document.activeElement.textContent.trim()`))
	}
	for _, want := range []string{"Overview", "Keys", "Queues", "Dead letters", "Processes", "Idempotency", "Audit", "find", "Show"} {
		assert.Contains(t, stops, want)
	}
	// From the overview to a key that is taken from its holder, with keys alone.
	slash(t, ctx)
	require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent("order:4711"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(chromedp.CSS(".button.small"))))
	focus := func(sel string) {
		t.Helper()
		for range 60 {
			if eval[bool](t, ctx, `document.activeElement.matches(`+fmt.Sprintf("%q", sel)+`)`) {
				return
			}
			require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent(kb.Tab)))
		}
		require.Fail(t, "no way to "+sel)
	}
	focus(".button.small")
	require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(chromedp.CSS("#why"))))
	focus("#why")
	require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent("it hangs"), chromedp.KeyEvent(kb.Enter), chromedp.WaitNotPresent(chromedp.CSS("#why"))))
	redistest.Eventually(t, func() bool { return strings.Contains(text(t, ctx), "It was done") }, "the page that follows")
}

func TestConsole_OtherSitesChangeNothing(t *testing.T) {
	env := redistest.Real(t)
	s := newService(t, env.Client(t), env.Prefix, operators, hostile...)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form id=f method=post action="%schange"><input name=do value=unlock><input name=key value="order:4711"><input name=fence value="%d"><input name=why value=evil></form><script>f.submit()</script>`, s.url, s.held.Fence())
	}))
	t.Cleanup(evil.Close)
	ctx := tab(t, sizes[1], false, true)
	// Another port is same-site: only the origin tells them apart.
	for _, from := range []string{evil.URL, strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)} {
		visit(t, ctx, from)
		redistest.Eventually(t, func() bool { return strings.HasPrefix(eval[string](t, ctx, `location.href`), s.url) }, "the form is sent")
		assert.Contains(t, strings.ToLower(eval[string](t, ctx, `document.body.innerText`)), "cross-origin")
	}
	require.NoError(t, s.held.Context().Err())
	// Nor can another site show the console in a frame.
	frame := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<iframe src="%s"></iframe>`, s.url)
	}))
	t.Cleanup(frame.Close)
	said := complaints(ctx)
	visit(t, ctx, frame.URL)
	redistest.Eventually(t, func() bool { return strings.Contains(strings.Join(said(), "\n"), "frame-ancestors") }, "the frame is refused")
}

// What is typed into a box does not come into an address when keys are hashed, nor does a key.
func TestConsole_FindsHashedKeys(t *testing.T) {
	env := redistest.Real(t)
	s := newService(t, env.Client(t), env.Prefix, func(o *console.Options) { o.KeySecret = []byte(strings.Repeat("s", 32)) }, hostile[0])
	for _, script := range []bool{true, false} {
		for box, want := range map[string]string{"#find": "POST /orders/:id/ship", "#prefix": "found in"} {
			ctx := tab(t, sizes[1], false, script)
			said := complaints(ctx)
			visit(t, ctx, s.url+"keys")
			require.NoError(t, chromedp.Do(ctx, chromedp.SendKeys(chromedp.CSS(box), "order:4711"), chromedp.Submit(chromedp.CSS(box))))
			var page []string
			redistest.Eventually(t, func() (found bool) { // in one step: the page changes meanwhile, and while another one is loaded there is none
				var err error
				page, err = chromedp.Run(ctx, chromedp.Evaluate[[]string](`["main", "html"].map(e => document.querySelector(e)?.[e == "main" ? "innerText" : "outerHTML"] ?? "").concat(location.href)`))
				return err == nil && strings.Contains(page[0], want)
			}, "it is found")
			assert.NotContains(t, strings.Join(page, " "), "order:4711")
			assert.Empty(t, said())
		}
	}
}
