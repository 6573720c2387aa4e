package core_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// published returns what has all messages on the server since.
func published(t *testing.T, rdb *redis.Client) func() []string {
	t.Helper()
	sub := rdb.PSubscribe(t.Context(), "*")
	require.NoError(t, errOf(sub.Receive(t.Context())))
	t.Cleanup(func() { _ = sub.Close() })
	heard, all := sub.Channel(redis.WithChannelSize(10_000)), []string(nil)
	return func() []string {
		for len(heard) > 0 {
			m := <-heard
			all = append(all, m.Channel+" "+m.Payload)
		}
		return all
	}
}

// TestSecrets_AreShownNowhere is long since it is one story.
func TestSecrets_AreShownNowhere(t *testing.T) {
	eachMode(t, func(t *testing.T, env *redistest.Env, opt core.AcquireOption) {
		ctx, rdb := t.Context(), env.Client(t)
		messages := published(t, rdb)
		var log bytes.Buffer
		var seen recorder
		logger := core.SlogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		a, b := newLocker(t, env, core.WithObserver(&seen)), newSleeper(t, env)

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
		first := testbed.Take(t, a, "k", opt, core.LeaseTTL(3*time.Second))
		listening(t, a)
		waiting := waitFor(t, b, "k")
		note()
		show(a.Inspect(ctx, "k"))
		show(b.List(ctx, "", 10))
		_, err := a.TryAcquire(ctx, "k")
		show(first, err)
		token := first.Token()
		_, err = a.Resume(ctx, token+"x")
		show(nil, err)
		_, err = a.Resume(ctx, token, core.Counted(7))
		show(nil, err)
		time.Sleep(1100 * time.Millisecond) // it is renewed
		show(a.ForceRelease(ctx, "k", first.Fence()))
		show(first, first.Release(ctx))
		_, err = a.Resume(ctx, token)
		show(nil, err)
		second := <-waiting
		note()
		show(second, nil)
		resumed := resume(t, a, second.Token())
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
		for _, e := range seen.events {
			reflect.ValueOf(logger).MethodByName("On" + reflect.TypeOf(e).Name()).Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(e)})
		}
		seen.mu.Unlock()
		require.Contains(t, log.String(), "lease lost")
		shown = append(shown, log.String())
		for _, text := range shown {
			require.NotContains(t, text, token[len(token)-40:])
			for _, secret := range secrets {
				require.NotContains(t, text, secret)
			}
		}
	})
}
