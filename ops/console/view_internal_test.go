package console

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

func init() { unseenTime = 3 * time.Second }

// A text is not copied once for each of its letters: a payload of some MiB took minutes.
func TestParts_TakeTimeInProportionToTheText(t *testing.T) {
	plain, escaped := strings.Repeat("k", 1<<16), strings.Repeat("\xff", 1<<16)
	assert.Equal(t, []part{{plain, true}}, parts(plain))
	assert.Equal(t, []part{{strings.Repeat(`\xff`, 1<<16), false}}, parts(escaped))
	assert.Less(t, testing.AllocsPerRun(3, func() { parts(plain) }), 100.0, "as the text grows by doubling")
}

func TestHistory_RatesOfSourcesWithLikeNames(t *testing.T) {
	var h history
	began := time.Now()
	for i := range int64(3) {
		now := began.Add(time.Duration(i) * time.Second)
		for _, name := range []string{"mail", "mail-bulk"} {
			h.rates("queue "+name, now, map[string]counted{"": {at: now, values: map[string]int64{"done " + name: 7 * i}}})
		}
	}
	for _, name := range []string{"mail", "mail-bulk"} {
		if assert.Len(t, h.series["done "+name], 2, name) {
			assert.InDelta(t, 7, h.series["done "+name][1].value, 0.01)
		}
	}
}

// Processes report less often than a page is read, and the age of a report is not exact.
func TestHistory_ReportsThatAreReadTwice(t *testing.T) {
	var h history
	told := time.Now()
	read := func(calls int64, at time.Time) {
		v := fleetView{Processes: []processView{{At: time.Now(), Process: ops.Process{ID: "p", Snapshot: ops.Snapshot{
			At: at, Locks: []ops.LockStats{{Calls: map[core.OutcomeKind]int64{core.OutcomeAcquired: calls}}},
		}}}}}
		h.fleet(&v)
	}
	read(0, told)
	for range 3 {
		read(100, told.Add(10*time.Second))
		time.Sleep(time.Millisecond)
	}
	for _, at := range h.series["calls"] {
		assert.InDelta(t, 10, at.value, 0.01)
	}
	assert.Len(t, h.series["calls"], 3)
}

func TestChart_OldValuesAreNotNow(t *testing.T) {
	now := time.Now()
	assert.Equal(t, "3", newChart("Held", "", now, []at{{now.Add(-time.Second), 3}}).Now)
	assert.Equal(t, "–", newChart("Held", "", now, []at{{now.Add(-time.Minute), 3}}).Now)
	old := newChart("Held", "", now, []at{{now.Add(-2 * time.Hour), 900}, {now.Add(-time.Hour), 900}, {now, 3}})
	assert.True(t, old.Flat)
	assert.Contains(t, old.Label, "highest 3")
}

func TestAreas_UnknownIsNotGood(t *testing.T) {
	t.Parallel()
	fleet, servers := panel[fleetView]{Err: errNoAnswer}, panel[[]ops.Server]{Err: errNoAnswer}
	level := func(a area) string { return a.Name + " " + a.Level() }
	all := areas(findings(nil, fleet, func(f *ops.Facts) { f.Servers, f.Queues.Err = asked(servers, servers.Data), errNoAnswer }), nil, fleet, servers)
	assert.Equal(t, []string{"Flow unknown", "Exclusion unknown", "Redis act", "Processes unknown"}, []string{level(all[0]), level(all[1]), level(all[2]), level(all[3])})
}

func TestProposal_SlowRedrivesHaveTheirTime(t *testing.T) {
	assert.Equal(t, changeTime, proposal{Do: ops.ActionPurge, Count: 50_000}.limit())
	assert.Equal(t, changeTime, proposal{Do: ops.ActionRedrive, Count: 50_000}.limit())
	assert.Equal(t, changeTime+50_000*time.Second, proposal{Do: ops.ActionRedrive, Count: 50_000, Rate: 1}.limit())
	assert.Equal(t, changeTime+maxCounted*time.Second, proposal{Do: ops.ActionRedrive, Count: 1 << 62, Rate: 1}.limit())
}

// Errors name keys in quotation marks: the page's, another that a call wanted too, and one that was cut off.
func TestKeyNames_HideInTexts(t *testing.T) {
	n, err := newKeyNames([]byte(strings.Repeat("s", minSecret)))
	require.NoError(t, err)
	long := "patient:" + strings.Repeat("m", 300)
	for text, want := range map[string]string{
		`core: acquire "k1": key is held`:              "core: acquire " + n.name("k1") + ": key is held",
		`core: acquire "patient:\xff\"2": key is held`: "core: acquire " + n.name("patient:\xff\"2") + ": key is held",
		`core: acquire "` + long[:100]:                 "core: acquire #",
		`core: acquire "patient:\`:                     "core: acquire #",
		`key="k1" name="pay" cause="no"`:               "key=" + n.name("k1") + ` name="pay" cause="no"`,
		`its patient:1 is held`:                        "its " + n.name("patient:1") + " is held",
		`deferred to queue "mail" as message "m"`:      `deferred to queue "mail" as message "m"`,
		`nothing`: "nothing",
	} {
		assert.Equal(t, want, n.hide("patient:1", text))
	}
	var shown *keyNames
	assert.Equal(t, `acquire "k1"`, shown.hide("k1", `acquire "k1"`))
}

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
