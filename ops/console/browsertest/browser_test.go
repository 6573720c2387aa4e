package browsertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// requireVar is an environment variable that, set to 1, makes a missing browser a failure.
const requireVar = "PERKEY_REQUIRE_CHROMIUM"

var browser context.Context // nil: there is none

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	shell, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		fmt.Println("browsertest: no chromium-headless-shell on PATH: nothing is tested; scripts/chromium.sh installs it")
		if os.Getenv(requireVar) == "1" {
			return 1
		}
		return 0
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(shell), chromedp.NoSandbox)
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	var end context.CancelFunc
	browser, end = chromedp.NewContext(allocator)
	defer end()
	if err := chromedp.Do(browser); err != nil {
		fmt.Println("browsertest:", err)
		return 1
	}
	return m.Run()
}

type size struct {
	name          string
	width, height int64
}

var sizes = []size{{"phone", 390, 844}, {"laptop", 1024, 768}, {"wide", 1600, 1000}}

// tab opens a tab of the browser, which closes with the test. A browser has few connections to a server, and each live page
// keeps one.
func tab(t testing.TB, at size, dark, script bool) context.Context {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx))
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(at.width, at.height)))
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !script})
	require.NoError(t, err)
	return ctx
}
