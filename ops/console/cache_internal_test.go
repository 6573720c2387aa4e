package console

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCache_ReadsOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		var loads atomic.Int64
		load := func(context.Context) (int64, error) {
			time.Sleep(100 * time.Millisecond)
			return loads.Add(1), nil
		}
		for round := range int64(3) {
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					p := get(t.Context(), &c, "n", time.Second, load)
					assert.NoError(t, p.Err)
					assert.Equal(t, round+1, p.Data)
				})
			}
			all.Wait()
			time.Sleep(2 * time.Second)
		}
		assert.EqualValues(t, 3, loads.Load())
	})
}

func TestCache_ShowsWhatWasKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		fails := errors.New("it fails")
		var away atomic.Bool
		load := func(ctx context.Context) (string, error) {
			if away.Load() {
				<-ctx.Done()
				return "", fails
			}
			return "known", nil
		}
		ask := func() panel[string] {
			ctx, cancel := context.WithTimeout(t.Context(), pageTimeout)
			defer cancel()
			return get(ctx, &c, "n", time.Second, load)
		}
		require.NoError(t, ask().Err)
		read := time.Now()
		time.Sleep(time.Minute)
		away.Store(true)
		began := time.Now()
		p := ask()
		assert.Equal(t, pageTimeout, time.Since(began))
		assert.Equal(t, panel[string]{"known", true, read, errNoAnswer}, p)
		time.Sleep(time.Minute)
		began = time.Now()
		p = ask()
		assert.Equal(t, retryTimeout, time.Since(began), "what has failed before is not waited for again")
		assert.Equal(t, panel[string]{"known", true, read, fails}, p)
		away.Store(false)
		time.Sleep(time.Minute)
		assert.NoError(t, ask().Err)
	})
}

func TestCache_IsBounded(t *testing.T) {
	var c cache
	for i := range 5 * maxReads {
		get(t.Context(), &c, fmt.Sprint(i), time.Second, func(context.Context) (int, error) { return i, nil })
	}
	assert.LessOrEqual(t, len(c.reads), maxReads)
}

func TestCache_IsBoundedWhenNothingIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		ctx, cancel := context.WithTimeout(t.Context(), pageTimeout)
		defer cancel()
		var all sync.WaitGroup
		var loads atomic.Int64
		for i := range 2 * maxReads {
			all.Go(func() {
				p := get(ctx, &c, fmt.Sprint(i), time.Second, func(ctx context.Context) (int, error) {
					loads.Add(1)
					<-ctx.Done()
					return 0, ctx.Err()
				})
				assert.Error(t, p.Err)
			})
		}
		all.Wait()
		assert.EqualValues(t, maxReads, loads.Load())
		assert.Len(t, c.reads, maxReads)
		time.Sleep(readTimeout)
		assert.NoError(t, get(t.Context(), &c, "next", time.Second, func(context.Context) (int, error) { return 1, nil }).Err)
	})
}

func TestCache_SurvivesAPanic(t *testing.T) {
	var c cache
	p := get(t.Context(), &c, "n", time.Second, func(context.Context) (int, error) { panic("it breaks") })
	assert.ErrorContains(t, p.Err, "it breaks")
	assert.PanicsWithValue(t, "it breaks", func() { together(func() {}, func() { panic("it breaks") }) })
}

func TestParts_ShowAnyBytes(t *testing.T) {
	for text, want := range map[string]string{
		"order:1 ü 日本": "order:1 ü 日本", "a\xffb": `a\xffb`, "\u202egnp": `\u202egnp`, "a\tb\r\nc": "a\\tb\\r\nc", "<b>": "<b>", "": "", "\x00": `\x00`, "\u200b": `\u200b`,
	} {
		assert.Equal(t, want, safe(text), "%q", text)
	}
}

func TestText_Forms(t *testing.T) {
	for got, want := range map[string]string{
		num(1234): "1234", num(12345): "12,345", num(-1234567): "-1,234,567", rate(0): "0", rate(0.01): "<0.1", rate(3): "3", rate(3.14): "3.1", rate(12345.6): "12,346",
		size(0): "0 B", size(1536): "1.5 KiB", size(200 << 20): "200 MiB", dur(0): "0 ms", dur(time.Microsecond): "<1 ms", dur(1500 * time.Millisecond): "1.5 s",
		dur(75 * time.Second): "1 min 15 s", dur(25 * time.Hour): "1 d 01 h", dur(-time.Second): "0 ms", short(3, "abcdef"): "ab…", short(3, "abc"): "abc", short(9, "a\nb"): "a",
		link("q", "a", "\xff&", "b", "c d"): "q?a=%FF%26&b=c+d",
	} {
		assert.Equal(t, want, got)
	}
}
