package core_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// published keeps every message on the server that test began to listen to.
func published(t *testing.T, rdb *redis.Client) func() []string {
	t.Helper()
	sub := rdb.PSubscribe(t.Context(), "*")
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	var mu sync.Mutex
	var all []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range sub.Channel(redis.WithChannelSize(10_000)) {
			mu.Lock()
			all = append(all, m.Channel+" "+m.Payload)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = sub.Close()
		<-done
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), all...)
	}
}

// TestSecrets_AreShownNowhere is long since it is one story.
func TestSecrets_AreShownNowhere(t *testing.T) {
	eachMode(t, func(t *testing.T, env *redistest.Env, opt core.AcquireOption) {
		ctx, rdb := t.Context(), env.Client(t)
		messages := published(t, rdb)
		var log bytes.Buffer
		var logMu sync.Mutex
		write := writer(func(p []byte) (int, error) { logMu.Lock(); defer logMu.Unlock(); return log.Write(p) })
		var seen recorder
		observe := core.WithObserver(both{&seen, core.SlogObserver(slog.New(slog.NewTextHandler(write, &slog.HandlerOptions{Level: slog.LevelDebug})))})
		a, b := newLocker(t, env, observe), newSleeper(t, env)

		var secrets, shown []string
		show := func(v any, err error) {
			text, jsonErr := json.Marshal(v)
			require.NoError(t, jsonErr)
			shown = append(shown, fmt.Sprintf("%v %+v %s", v, v, text), fmt.Sprint(err))
		}
		// note remembers the secrets that the record holds now.
		note := func() {
			fields, err := rdb.HGetAll(ctx, core.RecordName(env.Prefix, "k")).Result()
			require.NoError(t, err)
			before := len(secrets)
			for name, value := range fields {
				for _, m := range regexp.MustCompile(`\.([0-9a-f]{24})`).FindAllStringSubmatch(name+" "+value, -1) {
					secrets = append(secrets, m[1][8:])
				}
			}
			require.Greater(t, len(secrets), before)
		}
		first, err := a.TryAcquire(ctx, "k", opt, core.LeaseTTL(1500*time.Millisecond))
		require.NoError(t, err)
		listening(t, a)
		waiting := waitFor(t, b, "k")
		note()
		show(a.Inspect(ctx, "k"))
		show(b.List(ctx, "", 10))
		_, err = a.TryAcquire(ctx, "k")
		show(first, err)
		token := first.Token()
		_, err = a.Resume(ctx, token+"x")
		show(nil, err)
		_, err = a.Resume(ctx, token, core.Counted(7))
		show(nil, err)
		time.Sleep(600 * time.Millisecond) // it is renewed
		show(a.ForceRelease(ctx, "k", first.Fence()))
		show(first, first.Release(ctx))
		_, err = a.Resume(ctx, token)
		show(nil, err)
		second := <-waiting
		note()
		show(second, nil)
		resumed, err := a.Resume(ctx, second.Token())
		require.NoError(t, err)
		show(resumed, nil)
		show(resumed.Context(), nil)
		copied := reflect.ValueOf(resumed).Elem()
		shown = append(shown, fmt.Sprintf("%v %+v %#v %s", copied, copied, resumed, resumed))
		require.NoError(t, resumed.Release(ctx))
		show(second, second.Release(ctx))

		redistest.Eventually(t, func() bool {
			all := strings.Join(messages(), "\n")
			return strings.Contains(all, "lost "+fmt.Sprint(first.Fence())+" k") &&
				strings.Contains(all, "grant ") && strings.Contains(all, "released "+fmt.Sprint(second.Fence())+" k")
		}, "the messages")
		require.NoError(t, a.Close())
		shown = append(shown, messages()...)
		seen.mu.Lock()
		shown = append(shown, fmt.Sprintf("%+v", seen.events))
		seen.mu.Unlock()
		shown = append(shown, log.String())
		for _, text := range shown {
			require.NotContains(t, text, token[len(token)-40:])
			for _, secret := range secrets {
				require.NotContains(t, text, secret)
			}
		}
	})
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// both tells two observers.
type both [2]core.Observer

func (b both) OnOutcome(ctx context.Context, e core.Outcome) {
	b[0].OnOutcome(ctx, e)
	b[1].OnOutcome(ctx, e)
}

func (b both) OnWaiting(ctx context.Context, e core.Waiting) {
	b[0].OnWaiting(ctx, e)
	b[1].OnWaiting(ctx, e)
}

func (b both) OnReleased(ctx context.Context, e core.Released) {
	b[0].OnReleased(ctx, e)
	b[1].OnReleased(ctx, e)
}

func (b both) OnLost(ctx context.Context, e core.Lost) {
	b[0].OnLost(ctx, e)
	b[1].OnLost(ctx, e)
}

func (b both) OnUnclaimed(ctx context.Context, e core.Unclaimed) {
	b[0].OnUnclaimed(ctx, e)
	b[1].OnUnclaimed(ctx, e)
}

func (b both) OnRenewed(ctx context.Context, e core.Renewed) {
	b[0].OnRenewed(ctx, e)
	b[1].OnRenewed(ctx, e)
}

func (b both) OnWarning(ctx context.Context, w core.Warning) {
	b[0].OnWarning(ctx, w)
	b[1].OnWarning(ctx, w)
}
