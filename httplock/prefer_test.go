package httplock_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// TestPrefer_IsReadByItsGrammar is long since it is a table.
func TestPrefer_IsReadByItsGrammar(t *testing.T) {
	t.Parallel()
	nothing, async := core.Preference{}, core.Preference{Async: true}
	wait := func(s int64) core.Preference {
		return core.Preference{Bounded: true, Wait: time.Duration(s) * time.Second}
	}
	both := core.Preference{Bounded: true, Wait: 5 * time.Second, Async: true}
	const most = int64(1<<63-1) / int64(time.Second)
	for _, test := range []struct {
		lines []string
		want  core.Preference
	}{
		{nil, nothing},
		{[]string{""}, nothing},
		{[]string{" , ,, "}, nothing},
		{[]string{"respond-async"}, async},
		{[]string{"Respond-Async"}, async},
		{[]string{"respond-async; foo=bar ;baz; q=\"a,b\";"}, async},
		{[]string{`respond-async=""`}, async}, // an empty value is no value
		{[]string{"respond-async=no"}, nothing},
		{[]string{"respond-async-not"}, nothing},
		{[]string{"respond async"}, nothing},
		{[]string{"wait=5"}, wait(5)},
		{[]string{"WAIT = 5"}, wait(5)},
		{[]string{`wait="5"`}, wait(5)},
		{[]string{`wait="\5"`}, wait(5)},
		{[]string{"wait=0"}, wait(0)},
		{[]string{"wait=007"}, wait(7)},
		{[]string{"wait=99999999999999999999999"}, wait(most)},
		{[]string{"wait=9223372036854775807"}, wait(most)},
		{[]string{"wait"}, nothing},
		{[]string{"wait="}, nothing},
		{[]string{`wait=""`}, nothing},
		{[]string{"wait=-1"}, nothing},
		{[]string{"wait=+1"}, nothing},
		{[]string{"wait=1.5"}, nothing},
		{[]string{"wait=5s"}, nothing},
		{[]string{"wait=5 s"}, nothing},
		{[]string{"wait=٥"}, nothing},
		{[]string{"wait=5, respond-async"}, both},
		{[]string{"respond-async", "wait=5"}, both},
		{[]string{"return=minimal,respond-async,handling=lenient , wait=5;x"}, both},
		{[]string{"wait=5, wait=9", "Wait=1, respond-async"}, both},
		{[]string{"wait=soon, wait=5"}, nothing}, // the first counts, and says nothing of use
		{[]string{"respond-async=x, respond-async"}, nothing},
		{[]string{"wait==9, wait=5"}, wait(5)}, // the first is no preference
		{[]string{"=, wait=5"}, wait(5)},
		{[]string{"(wait=9), wait=5"}, wait(5)},
		{[]string{`foo="wait=9, respond-async", wait=5`}, wait(5)},
		{[]string{`foo="\", wait=9", wait=5`}, wait(5)},
		{[]string{`@"x, wait=9", wait=5`}, wait(5)}, // a comma in a quoted string ends no junk
		{[]string{`foo="never closed, wait=5`}, wait(5)},
		{[]string{`foo="a` + "\x00" + `b", wait=5`}, wait(5)},
		{[]string{`foo="\`}, nothing},
		{[]string{"wait=5;;;", "respond-async ; a = b"}, both},
		{[]string{"wait=5;=x"}, nothing},
		{[]string{"foo; wait=5"}, nothing}, // a parameter of foo
		{[]string{"foo; respond-async"}, nothing},
	} {
		assert.Equal(t, test.want, httplock.ParsePrefer(test.lines), "%q", test.lines)
	}
}

func FuzzPrefer(f *testing.F) {
	for _, s := range []string{"wait=5", `wait="5";a=b,respond-async`, `x="\"`, ",;=", "wait==1, wait=2", `@"a,b", wait=1`} {
		f.Add(s, "respond-async")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		p := httplock.ParsePrefer([]string{a, b})
		require.GreaterOrEqual(t, p.Wait, time.Duration(0))
		if !p.Bounded {
			require.Zero(t, p.Wait)
		}
		lower := strings.ToLower(a + "," + b)
		require.True(t, !p.Bounded || strings.Contains(lower, "wait"))
		require.True(t, !p.Async || strings.Contains(lower, "respond-async"))
		// What cannot be part of anything else in front of it changes nothing.
		require.Equal(t, p, httplock.ParsePrefer([]string{"", "x=1", a, b}))
	})
}

// parkLate waits for a time that no test takes, and then parks.
func parkLate(d *parkingSite) *core.Guard {
	return d.Locker.Guard(retry.Policy{MaxWait: time.Hour, Then: delayqueue.Policy(d.queue)})
}

func drain[T any](ch chan T) {
	for len(ch) > 0 {
		<-ch
	}
}

// An answer to the same request is no preference's doing: it comes before any waiting.
func TestPrefer_IsNotAppliedToRequestsMadeTwice(t *testing.T) {
	d := openParking(t, redistest.Embedded(t))
	h := guarded(parkLate(d), ok, httplock.WithPrefer(), httplock.WithIdempotency(newIdempotency(t, d.Fixture)))
	post := func(key string) testbed.Answer {
		r := withKey(t, testbed.OrderPath, key, "{}")
		r.Header.Set("Prefer", "wait=0, respond-async")
		return testbed.Do(h, r)
	}
	require.NotContains(t, post("done").Header, "Preference-Applied", "it met no conflict")
	require.NotContains(t, post("done").Header, "Preference-Applied", "nor did this one")
	d.Hold(t)
	resp := post("parked")
	requireParked(t, resp)
	require.ElementsMatch(t, []string{"respond-async", "wait=0"}, resp.Header["Preference-Applied"])
	resp = post("parked")
	requireParked(t, resp)
	require.NotContains(t, resp.Header, "Preference-Applied", "the ticket was there")
	resp = post("done")
	require.Equal(t, "true", resp.Header.Get("Idempotent-Replayed"))
	require.NotContains(t, resp.Header, "Preference-Applied", "and so was the response")
}

// A request that cannot be parked waits, rather than being refused for a preference.
func TestPrefer_DoesNotSendToTheQueueWhatItDoesNotTake(t *testing.T) {
	d := openParking(t, redistest.Embedded(t))
	for name, change := range map[string]func(*http.Request){
		"credentials": func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") },
		"upgrade":     func(r *http.Request) { r.Header.Set("Upgrade", "websocket") },
	} {
		release := d.Hold(t)
		drain(d.Conflicts)
		go func() {
			<-d.Conflicts
			release()
		}()
		url, client := testbed.Serve(t, guarded(parkLate(d), ok, httplock.WithPrefer(), sentBy(nobody, anybody), httplock.WithLogger(d.log.Logger())))
		r := testbed.ToServer(t.Context(), t, url+testbed.OrderPath, "{}")
		r.Header.Set("Prefer", "respond-async")
		change(r)
		resp, err := testbed.Send(client, r)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.Status, "%s: %s", name, resp.Body)
	}
	d.requireNothingParked(t)
}

func TestVary_IsAddedOnceAndNotToWhatPasses(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := guarded(b.Locker.Guard(core.RejectConflicts), ok, httplock.WithPrefer())
	front := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept, prefer")
		h.ServeHTTP(w, r)
	})
	require.Equal(t, []string{"Accept, prefer"}, testbed.Call(t, front, http.MethodPost, testbed.OrderPath, "").Header["Vary"])
	require.NotContains(t, testbed.Call(t, h, http.MethodGet, testbed.OrderPath, "").Header, "Vary", "it depends on nothing")
	require.Equal(t, []string{"Prefer"}, testbed.Call(t, h, http.MethodPost, "/orders/%00", "").Header["Vary"], "refusals too")
}

func TestPrefer_ReplaysHaveNoPreference(t *testing.T) {
	d := openParking(t, redistest.Embedded(t))
	d.guard = parkLate(d)
	d.handle(ok, httplock.WithPrefer(), httplock.WithAllowedHeaders("Prefer"))
	release := d.Hold(t)
	r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "{}")
	r.Header.Set("Prefer", "respond-async")
	location := requireParked(t, testbed.Do(d.mux, r))
	release()
	d.work(t, httplock.WithAllowedResponseHeaders("Vary", "Preference-Applied"))
	result := d.result(t, location)
	require.Equal(t, http.StatusOK, result.Status)
	require.NotContains(t, result.Header, "Vary")
	require.NotContains(t, result.Header, "Preference-Applied")
}

// The header is as long as the server lets it be, and read once. Allocations are
// counted, since time would say nothing here.
func TestPrefer_QuotesWithoutEndAreReadOnce(t *testing.T) {
	junk := []string{`"` + strings.Repeat(`\"`, 2000)}
	require.Less(t, testing.AllocsPerRun(1, func() { httplock.ParsePrefer(junk) }), 100.0)
}
