package browsertest

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
)

const settle = 20 * time.Second // for charts

// TestShots takes pictures of all screens into the folder PERKEY_SHOTS, for a person to look at.
func TestShots(t *testing.T) {
	dir := os.Getenv("PERKEY_SHOTS")
	if dir == "" {
		return
	}
	env := redistest.Real(t)
	s := newService(t, env.Client(t), env.Prefix, func(o *console.Options) {
		o.Changes, o.Authorize = true, func(*http.Request, ops.Action) (string, error) { return "ada@example.com", nil }
	}, hostile...)
	s.settled(t)
	operator(t, s)
	fleet, err := ops.ReadFleet(t.Context(), s.rdb, s.prefix)
	require.NoError(t, err)
	letters, _, err := s.ship.List(t.Context(), "dead", "", 1)
	require.NoError(t, err)
	screens := map[string]string{
		"overview": "", "keys": "keys", "key": "key?key=order:4711", "hostile": "key?key=" + url.QueryEscape(hostile[2]), "long": "key?key=" + url.QueryEscape(hostile[3]),
		"watched": "key?key=cart:1", "search": "keys?prefix=order", "queues": "queues", "queue": "queue?queue=ship", "dead": "dead",
		"message": "message?queue=ship&id=" + letters[0].ID, "processes": "processes", "process": "process?id=" + fleet.Processes[0].ID,
		"audit": "audit", "unlock": fmt.Sprintf("change?do=unlock&key=order:4711&fence=%d", s.held.Fence()), "redrive": "change?do=redrive&queue=ship&name=fail+card&cause=card",
		"letters":     "dead?queue=ship&name=fail+card&cause=" + url.QueryEscape("card declined by the bank: 05 do not honour"),
		"idempotency": "idempotency?route=POST+/payments&principal=user-7&idempotency-key=pay-1", "missing": "nothing",
	}
	resp, err := http.Post(s.url+"watch?key=cart:1", "", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	only := os.Getenv("PERKEY_SHOT")
	t.Run("warm", func(t *testing.T) {
		require.NoError(t, chromedp.Do(tab(t, sizes[1], false, true), chromedp.Navigate(s.url), chromedp.Sleep(settle)))
	})
	for name, path := range screens {
		if only != "" && name != only {
			continue
		}
		for _, at := range sizes {
			for scheme, dark := range map[string]bool{"light": false, "dark": true} {
				t.Run(name, func(t *testing.T) {
					ctx := tab(t, at, dark, true)
					require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(s.url+path), chromedp.Sleep(300*time.Millisecond)))
					png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%s.png", name, at.name, scheme)), png, 0o644))
				})
			}
		}
	}
}

// TestShotForReadme takes docs/console.png.
func TestShotForReadme(t *testing.T) {
	dir := os.Getenv("PERKEY_SHOTS")
	if dir == "" {
		return
	}
	env := redistest.Real(t)
	s := newService(t, env.Client(t), "shop", nil, "stock:sku-1042", "wallet:88")
	s.settled(t)
	ctx := tab(t, size{"readme", 1280, 682}, false, true)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(s.url), chromedp.Sleep(100*time.Second)))
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "console.png"), png, 0o644))
}

// operator makes some changes, for the audit.
func operator(t testing.TB, s *service) {
	t.Helper()
	audit, err := ops.NewAudit(s.rdb, s.prefix, nil)
	require.NoError(t, err)
	o, err := ops.NewOperator(s.lockers[0], audit)
	require.NoError(t, err)
	by := ops.By{Who: "ada@example.com", Why: "INC-42: the deploy hangs"}
	lease, err := s.lockers[2].Acquire(t.Context(), "order:99", core.Named("POST /orders/:id/pay", ""))
	require.NoError(t, err)
	require.NoError(t, o.Unlock(t.Context(), by, "order:99", lease.Fence()))
	require.Error(t, o.Unlock(t.Context(), by, "order:4711", 7))
	require.NoError(t, o.Pause(t.Context(), ops.By{Who: "grace@example.com", Why: "mail provider is down"}, "mail", time.Hour))
	require.NoError(t, o.Resume(t.Context(), ops.By{Who: "grace@example.com", Why: "back again"}, "mail"))
}
