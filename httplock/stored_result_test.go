package httplock_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// replayed parks a request for handler, and returns the result of its replay.
func (d *parkingSite) replayed(t *testing.T, handler http.HandlerFunc, opts ...httplock.ReplayOption) testbed.Answer {
	t.Helper()
	d.handle(handler)
	release := d.Hold(t)
	location := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
	testbed.RequireProblem(t, testbed.Call(t, d.mux, http.MethodGet, location+"/result", ""), http.StatusNotFound, "no-such-ticket", false)
	d.work(t, opts...)
	release()
	return d.result(t, location)
}

func TestResult_KeepsAllowedHeadersOnly(t *testing.T) {
	d := openParking(t, redistest.Embedded(t))
	kept := http.Header{
		"Content-Type": {"application/json"}, "Content-Language": {"de"}, "Content-Encoding": {"x"}, "Content-Disposition": {"inline"},
		"Location": {"https://h/a"}, "Etag": {`"1"`}, "Last-Modified": {"now"}, "Link": {"<a>", "<b>"}, "Retry-After": {"3"},
		"Allow": {"GET"}, "X-Mine": {"caf\xe9"},
	}
	got := d.replayed(t, func(w http.ResponseWriter, _ *http.Request) {
		maps.Copy(w.Header(), kept)
		for _, name := range []string{
			"Set-Cookie", "Www-Authenticate", "Authorization", "Authentication-Info", "X-Other", "Cache-Control", "Vary", "Trailer", "X-Hop",
		} {
			w.Header().Set(name, testbed.Secret)
		}
		w.Header().Set("Connection", "x-hop")
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusConflict)
	}, httplock.WithAllowedResponseHeaders("x-mine", "X-Hop"))
	kept.Set("Cache-Control", "no-store")
	kept.Set("X-Content-Type-Options", "nosniff")
	kept.Set("Content-Length", "0")
	require.Equal(t, testbed.Answer{Status: http.StatusConflict, Header: kept}, got)
}

func TestResult_OfAnUnsaidResponse(t *testing.T) {
	for name, test := range map[string]struct {
		handler           http.HandlerFunc
		status            int
		contentType, body string
	}{
		"nothing": {func(http.ResponseWriter, *http.Request) {}, http.StatusOK, "", ""},
		"a body":  {ok, http.StatusOK, "text/plain; charset=utf-8", "ok"},
		"no type": {func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = nil
			ok(w, r)
		}, http.StatusOK, "", "ok"},
		"a status without body": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			ok(w, r)
		}, http.StatusNoContent, "", ""},
		"an interim status": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			ok(w, r)
		}, http.StatusOK, "text/plain; charset=utf-8", "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			d := openParking(t, redistest.Embedded(t))
			got := d.replayed(t, test.handler)
			require.Equal(t, test.status, got.Status)
			require.Equal(t, test.contentType, got.Header.Get("Content-Type"))
			require.Equal(t, test.body, got.Body)
			require.NotContains(t, got.Header, "Perkey-Truncated")

			h := httplock.TicketsOver(&fakeQueue{state: delayqueue.StateDone, result: stored(t, got)}, anyone)
			url, client := testbed.Serve(t, h) // a server guesses types, which a recorder does not
			r := testbed.ToServer(t.Context(), t, url+ticketPath+"/result", "")
			r.Method = http.MethodGet
			served, err := testbed.Send(client, r)
			require.NoError(t, err)
			require.Equal(t, test.contentType, served.Header.Get("Content-Type"))
			require.Equal(t, test.body, served.Body)
		})
	}
}

// stored is the stored form of the result that a response shows.
func stored(t *testing.T, resp testbed.Answer) []byte {
	t.Helper()
	header := http.Header{}
	if kind := resp.Header.Get("Content-Type"); kind != "" {
		header.Set("Content-Type", kind)
	}
	result, err := (&httplock.DecodedResult{Status: resp.Status, Header: header, Body: []byte(resp.Body)}).Encode()
	require.NoError(t, err)
	return result
}

func TestResult_LocationMeansWhatItMeant(t *testing.T) {
	for location, want := range map[string]string{
		"/a":            "/a",
		"https://h/a":   "https://h/a",
		"//h/a":         "//h/a",
		"parts/1":       "/orders/parts/1",
		"../carts?x=1":  "/carts?x=1",
		"?page=2":       testbed.OrderPath + "?page=2",
		"%zz":           "%zz",
		"mailto:a@b.c":  "mailto:a@b.c",
		"a%2Fb":         "/orders/a%2Fb",
		"/a/../b?c=d#e": "/a/../b?c=d#e",
	} {
		t.Run(location, func(t *testing.T) {
			d := openParking(t, redistest.Embedded(t))
			got := d.replayed(t, func(w http.ResponseWriter, r *http.Request) {
				r.URL.Path = "/changed/by/the/handler"
				w.Header().Set("Location", location)
			})
			require.Equal(t, want, got.Header.Get("Location"))
		})
	}
}

func TestResult_LongResultsAreCutAndSaySo(t *testing.T) {
	for name, test := range map[string]struct {
		size, want int
		queue      []delayqueue.Option
		replay     []httplock.ReplayOption
		header     int // the size of one
		whole      bool
	}{
		"at the default cap":   {size: 64 << 10, want: 64 << 10, whole: true},
		"over the default cap": {size: 64<<10 + 1, want: 64 << 10},
		"at a cap":             {size: 5, want: 5, replay: []httplock.ReplayOption{httplock.WithMaxResponseBody(5)}, whole: true},
		"over a cap":           {size: 6, want: 5, replay: []httplock.ReplayOption{httplock.WithMaxResponseBody(5)}},
		"no body kept":         {size: 1, want: 0, replay: []httplock.ReplayOption{httplock.WithMaxResponseBody(0)}},
		"a larger cap": {
			size: 100 << 10, want: 100 << 10, whole: true,
			queue: []delayqueue.Option{delayqueue.WithMaxResult(104 << 10)}, replay: []httplock.ReplayOption{httplock.WithMaxResponseBody(100 << 10)},
		},
		"over the queue's cap":              {size: 1000, want: 500, queue: []delayqueue.Option{delayqueue.WithMaxResult(700)}},
		"headers too large":                 {size: 10, want: 0, header: 1000, queue: []delayqueue.Option{delayqueue.WithMaxResult(100)}},
		"a queue that keeps nearly nothing": {size: 10, want: 0, queue: []delayqueue.Option{delayqueue.WithMaxResult(45)}},
	} {
		t.Run(name, func(t *testing.T) {
			d := openParking(t, redistest.Embedded(t), test.queue...)
			body := strings.Repeat("0123456789", test.size/10+1)[:test.size]
			got := d.replayed(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Link", strings.Repeat("x", test.header))
				w.WriteHeader(http.StatusAccepted)
				for _, part := range []string{body[:test.size/2], body[test.size/2:], ""} {
					n, err := io.WriteString(w, part)
					assert.NoError(t, err)
					assert.Equal(t, len(part), n)
				}
			}, test.replay...)
			require.Equal(t, http.StatusAccepted, got.Status)
			require.Equal(t, body[:test.want], got.Body)
			require.Equal(t, fmt.Sprint(test.want), got.Header.Get("Content-Length"))
			if test.whole {
				require.NotContains(t, got.Header, "Perkey-Truncated")
			} else {
				require.Equal(t, "true", got.Header.Get("Perkey-Truncated"))
			}
		})
	}
}

func TestResult_AResultThatCannotBeKeptDoesNotRunTheRequestAgain(t *testing.T) {
	d := openParking(t, redistest.Embedded(t), delayqueue.WithMaxResult(1))
	d.handle(ok)
	release := d.Hold(t)
	location := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
	d.work(t)
	release()
	require.Equal(t, 1, d.await(t, location, delayqueue.StateDone).Attempts)
	testbed.RequireProblem(t, testbed.Call(t, d.mux, http.MethodGet, location+"/result", ""), http.StatusNotFound, "no-such-ticket", false)
}

func TestResult_AStatusThatIsNoneIsAPanicAsInNetHTTP(t *testing.T) {
	h := anyGuard(t)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(1000) }))
	require.Panics(t, func() { _ = httplock.Replay(h)(t.Context(), message(t, post(t, "/"))) })
}

func TestResult_MistakenReplaysFail(t *testing.T) {
	for name, opt := range map[string]httplock.ReplayOption{
		"nil": nil, "negative": httplock.WithMaxResponseBody(-1), "immense": httplock.WithMaxResponseBody(1 << 30),
		"cookie": httplock.WithAllowedResponseHeaders("X-Fine", "set-cookie"), "challenge": httplock.WithAllowedResponseHeaders("WWW-Authenticate"),
		"no name": httplock.WithAllowedResponseHeaders(""), "not a name": httplock.WithAllowedResponseHeaders("X A"),
		"caching": httplock.WithAllowedResponseHeaders("Cache-Control"), "length": httplock.WithAllowedResponseHeaders("Content-Length"),
	} {
		err := httplock.Replay(mustNotRun(t), opt)(t.Context(), message(t, post(t, "/")))
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
	}
}

func TestDecodeResult_RefusesWhatMakesNoResponse(t *testing.T) {
	for name, stored := range map[string]string{
		"empty":          "",
		"no line":        `{"v":1,"status":200}`,
		"not JSON":       "hello\n",
		"array":          "[]\n",
		"no version":     `{"status":200}` + "\n",
		"later version":  `{"v":2,"status":200}` + "\n",
		"unknown field":  `{"v":1,"status":200,"cookie":"x"}` + "\n",
		"two values":     `{"v":1,"status":200}{}` + "\n",
		"no status":      `{"v":1}` + "\n",
		"interim status": `{"v":1,"status":101}` + "\n",
		"huge status":    `{"v":1,"status":1000}` + "\n",
		"body of a 204":  `{"v":1,"status":204}` + "\nx",
		"bad header":     `{"v":1,"status":200,"header":{"a b":["x"]}}` + "\n",
		"lower header":   `{"v":1,"status":200,"header":{"etag":["x"]}}` + "\n",
		"cookie":         `{"v":1,"status":200,"header":{"Set-Cookie":["x"]}}` + "\n",
		"length":         `{"v":1,"status":200,"header":{"Content-Length":["1"]}}` + "\n",
		"header value":   `{"v":1,"status":200,"header":{"Etag":["a\r\nb"]}}` + "\n",
		"not bytes":      `{"v":1,"status":200,"header":{"Etag":["\u0444"]}}` + "\n",
	} {
		_, err := httplock.DecodeResult([]byte(stored))
		require.ErrorContains(t, err, "httplock: decode a result: ", name)
	}
}

// FuzzDecodeResult: what decodes makes a response, and encodes to the same one.
func FuzzDecodeResult(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "{}\n", "null\n", "[]\n\n", `{"v":1}` + "\n",
		`{"v":1,"status":200}` + "\n",
		`{"v":1,"status":204,"header":{"Etag":["\"1\""]}}` + "\n",
		`{"v":1,"status":404,"header":{"Content-Type":["text/plain"],"Link":["a","b"]},"truncated":true}` + "\nbody\n\x00\xff",
		`{"v":1,"status":200,"header":{"Etag":["\u00ff"],"Allow":null,"Link":[]}}` + "\n",
		`{"v":1,"status":200,"header":{"Set-Cookie":["a=b"]}}` + "\n",
		`{"v":1e0,"STATUS":303,"header":{"Location":["//evil/"]}} ` + "\n{}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		got, err := httplock.DecodeResult(stored)
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
		got.WriteResult(w, r) // panics for a status that is none
		if w.Code != got.Status || !bytes.Equal(w.Body.Bytes(), got.Body) {
			t.Fatalf("%d %q, want %d %q", w.Code, w.Body, got.Status, got.Body)
		}
		for _, name := range []string{"Set-Cookie", "Connection", "Authorization", "Transfer-Encoding"} {
			if len(w.Header()[name]) > 0 {
				t.Fatalf("header %s", name)
			}
		}
		if w.Header().Get("Cache-Control") != "no-store" || (w.Header().Get("Perkey-Truncated") != "") != got.Truncated {
			t.Fatalf("header %v", w.Header())
		}

		again, err := got.Encode()
		if err != nil {
			t.Fatal(err)
		}
		second, err := httplock.DecodeResult(again)
		if err != nil {
			t.Fatalf("%q: %v", again, err)
		}
		if second.Status != got.Status || second.Truncated != got.Truncated || !bytes.Equal(second.Body, got.Body) {
			t.Fatalf("%v became %v", got, second)
		}
		for name, values := range got.Header {
			if fmt.Sprint(second.Header[name]) != fmt.Sprint(values) {
				t.Fatalf("%v became %v", got.Header, second.Header)
			}
		}
	})
}
