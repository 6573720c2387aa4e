package httplock_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"maps"
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
)

// parkingSite has a queue, a guard that parks on it, and a mux that replays go through.
type parkingSite struct {
	*testbed.Fixture
	queue *delayqueue.Queue
	guard *core.Guard
	mux   *http.ServeMux
	log   *testbed.Log // of guards and workers
}

func openParking(t *testing.T, env *redistest.Env, opts ...delayqueue.Option) *parkingSite {
	t.Helper()
	d := &parkingSite{Fixture: testbed.New(t, env), mux: http.NewServeMux(), log: &testbed.Log{}}
	d.queue = testbed.NewQueue(t, d.Redis, "ship", append([]delayqueue.Option{delayqueue.WithPrefix(env.Prefix)}, opts...)...)
	d.guard = d.Locker.Guard(delayqueue.Policy(d.queue))
	d.mux.Handle("/tickets/", httplock.TicketHandler(d.queue, anyone))
	return d
}

// handle serves handler at /orders/{id}, and parks its requests.
func (d *parkingSite) handle(handler http.HandlerFunc, opts ...httplock.Option) {
	d.mux.Handle("/orders/{id}", d.perKey(opts...)(handler))
}

func (d *parkingSite) perKey(opts ...httplock.Option) func(http.Handler) http.Handler {
	opts = append([]httplock.Option{httplock.WithStatusPath("/tickets/"), httplock.WithLogger(d.log.Logger())}, opts...)
	return httplock.PerKey(d.guard, orderKey, said(d.guard, opts)...)
}

// work starts a worker that is stopped with the test, or before.
func (d *parkingSite) work(t *testing.T, opts ...httplock.ReplayOption) (stop func()) {
	t.Helper()
	w := testbed.Work(t, d.queue, d.Locker, httplock.Replay(d.mux, opts...),
		delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(d.log.Logger()))
	return func() { assert.NoError(t, w.Stop(context.Background())) }
}

// requireParked returns where the ticket is.
func requireParked(t *testing.T, resp testbed.Answer) (location string) {
	t.Helper()
	require.Equal(t, http.StatusAccepted, resp.Status, resp.Body)
	return resp.Header.Get("Location")
}

func (d *parkingSite) status(t *testing.T, location string) delayqueue.Status {
	t.Helper()
	s, err := d.queue.Status(t.Context(), strings.TrimPrefix(location, "/tickets/"))
	require.NoError(t, err)
	return s
}

func (d *parkingSite) await(t *testing.T, location string, state delayqueue.State) delayqueue.Status {
	t.Helper()
	redistest.Eventually(t, func() bool { return d.status(t, location).State == state }, "the ticket becomes "+string(state))
	return d.status(t, location)
}

// result waits for the result of a parked request.
func (d *parkingSite) result(t *testing.T, location string) testbed.Answer {
	t.Helper()
	d.await(t, location, delayqueue.StateDone)
	resp := testbed.Call(t, d.mux, http.MethodGet, location, "")
	require.Equal(t, http.StatusSeeOther, resp.Status)
	var ticket struct{ State string }
	require.NoError(t, json.Unmarshal([]byte(resp.Body), &ticket))
	require.Equal(t, "done", ticket.State)
	return testbed.Call(t, d.mux, http.MethodGet, location+"/result", "")
}

func (d *parkingSite) requireNothingParked(t *testing.T) {
	t.Helper()
	stats, err := d.queue.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Queued+stats.Running+stats.Dead)
}

func TestCapture_KeepsTheTargetAsItWasSent(t *testing.T) {
	for sent, want := range map[string]string{
		"/orders/a%2Fb/ship?x=1&x=2&y=%20+": "/orders/a%2Fb/ship?x=1&x=2&y=%20+",
		"/":                                 "/",
		"/?":                                "/?",
		"/a?b?c":                            "/a?b?c",
		"//double/slash":                    "//double/slash",
		"/caf\xe9/\xff?q=\xfe":              "/caf\xe9/\xff?q=\xfe",
		"http://evil.example/orders/1?a=b":  "/orders/1?a=b",
		"http://evil.example":               "/",
	} {
		r := testbed.Request(t, http.MethodPost, "/", "")
		r.RequestURI = sent
		payload, err := httplock.Encode(r, 100)
		require.NoError(t, err)
		got, _, err := httplock.Decode(t.Context(), payload)
		require.NoError(t, err, sent)
		require.Equal(t, want, got.RequestURI)
		require.Empty(t, got.Host)
		require.Empty(t, got.URL.Host)
		require.NotContains(t, string(payload), "evil")
	}

	// A prefix that was taken off the URL on the way is still there.
	r := testbed.Request(t, http.MethodPost, "/api/orders/1", "")
	r.URL.Path = "/orders/1"
	payload, err := httplock.Encode(r, 100)
	require.NoError(t, err)
	got, _, err := httplock.Decode(t.Context(), payload)
	require.NoError(t, err)
	require.Equal(t, "/api/orders/1", got.URL.Path)

	// Requests that were not read from a connection have an URL only.
	r, err = http.NewRequestWithContext(t.Context(), http.MethodPost, "https://h/a%2Fb?c", nil)
	require.NoError(t, err)
	payload, err = httplock.Encode(r, 100)
	require.NoError(t, err)
	got, _, err = httplock.Decode(t.Context(), payload)
	require.NoError(t, err)
	require.Equal(t, "/a%2Fb?c", got.RequestURI)
	require.Equal(t, "/a/b", got.URL.Path)
	require.Equal(t, "/a%2Fb", got.URL.RawPath)
}

func TestCapture_KeepsAllowedHeadersOnly(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	p := &testbed.Parking{}
	h := guarded(b.Locker.Guard(p), mustNotRun(t), httplock.WithAllowedHeaders("x-tenant", "X-Hop"), httplock.WithAnonymous())

	const date = "Sun, 22 Nov 2026 13:00:00 GMT"
	r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "{}")
	kept := http.Header{
		"Accept": {"a/b", "c/d;q=0.1"}, "Accept-Language": {"en"}, "Content-Type": {"application/json"},
		"Content-Encoding": {"br"}, "Idempotency-Key": {`"k"`}, "Traceparent": {"00-a-b-01"}, "X-Tenant": {"caf\xe9", "<&>"}, "X-Hop": {"1"},
		"If-Match": {`"v0"`}, "If-None-Match": {`"never"`}, "If-Modified-Since": {date}, "If-Unmodified-Since": {date},
	}
	maps.Copy(r.Header, kept)
	for name, value := range map[string]string{
		"Authorization": "Bearer " + testbed.Secret, "Cookie": "session=" + testbed.Secret, "Proxy-Authorization": testbed.Secret,
		"X-Forwarded-For": "1.2.3.4", "Connection": "keep-alive, x-hop", "Host": "evil.example",
		"Expect": "100-continue", "Te": "trailers", "Perkey-Replay": "1",
		"If-Range": `"v0"`, // it means nothing without Range, which is not stored
	} {
		r.Header.Set(name, value)
	}
	w := testbed.Do(h, r)
	require.Equal(t, http.StatusAccepted, w.Status)

	payload := p.Parked()[0]
	head, body, _ := bytes.Cut(payload, []byte("\n"))
	require.Equal(t, "{}", string(body))
	require.NotContains(t, string(payload), "Bearer")
	var stored struct {
		V      int
		Method string
		Target string
		Header map[string][]string
	}
	require.NoError(t, json.Unmarshal(head, &stored))
	require.Equal(t, 1, stored.V)
	require.Len(t, stored.Header, len(kept))
	got, _, err := httplock.Decode(t.Context(), payload)
	require.NoError(t, err)
	require.Equal(t, kept, got.Header)
}

func TestDecode_RefusesWhatMakesNoRequest(t *testing.T) {
	for name, payload := range map[string]string{
		"empty":           "",
		"no line":         `{"v":1,"method":"POST","target":"/"}`,
		"not JSON":        "hello\n",
		"array":           "[]\n",
		"no version":      `{"method":"POST","target":"/"}` + "\n",
		"later version":   `{"v":2,"method":"POST","target":"/"}` + "\n",
		"unknown field":   `{"v":1,"method":"POST","target":"/","priority":1}` + "\n",
		"two values":      `{"v":1,"method":"POST","target":"/"}{}` + "\n",
		"no method":       `{"v":1,"target":"/"}` + "\n",
		"bad method":      `{"v":1,"method":"PO ST","target":"/"}` + "\n",
		"connect":         `{"v":1,"method":"CONNECT","target":"/"}` + "\n",
		"no target":       `{"v":1,"method":"POST"}` + "\n",
		"relative target": `{"v":1,"method":"POST","target":"a"}` + "\n",
		"absolute target": `{"v":1,"method":"POST","target":"http://evil/"}` + "\n",
		"bad escape":      `{"v":1,"method":"POST","target":"/%zz"}` + "\n",
		"control byte":    `{"v":1,"method":"POST","target":"/\n"}` + "\n",
		"not bytes":       `{"v":1,"method":"POST","target":"/\u0444"}` + "\n",
		"bad header":      `{"v":1,"method":"POST","target":"/","header":{"a b":["x"]}}` + "\n",
		"lower header":    `{"v":1,"method":"POST","target":"/","header":{"accept":["x"]}}` + "\n",
		"credential":      `{"v":1,"method":"POST","target":"/","header":{"Authorization":["x"]}}` + "\n",
		"header value":    `{"v":1,"method":"POST","target":"/","header":{"Accept":["a\r\nb"]}}` + "\n",
	} {
		_, _, err := httplock.Decode(t.Context(), []byte(payload))
		require.ErrorContains(t, err, "httplock: decode a parked request: ", name)
	}
}

// FuzzDecode: what decodes makes a request that encodes to the same one.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "{}\n", "null\n", "[]\n\n", `{"v":1}` + "\n",
		`{"v":1,"method":"POST","target":"/"}` + "\n",
		`{"v":1,"method":"PUT","target":"/a%2Fb?x=1&x=2","header":{"Accept":["a","b"],"Content-Type":["text/plain"]}}` + "\nbody\n\x00\xff",
		`{"v":1,"method":"POST","target":"//evil.example/a?b#c"}` + "\n",
		`{"v":1,"method":"POST","target":"/caf\u00e9","header":{"Accept":["\u00ff"]}}` + "\n",
		`{"v":1,"method":"POST","target":"http://evil/"}` + "\n",
		`{"v":1e0,"METHOD":"GET","target":"/"} ` + "\n{}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, body, err := httplock.Decode(t.Context(), payload)
		if err != nil {
			return
		}
		if r.Host != "" || r.URL.Host != "" || r.URL.Scheme != "" || !strings.HasPrefix(r.RequestURI, "/") {
			t.Fatalf("it goes elsewhere: %q", r.RequestURI)
		}
		got, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(got, body) || r.ContentLength != int64(len(body)) {
			t.Fatalf("body %q, want %q", got, body)
		}
		for name := range r.Header {
			if name == "Authorization" || name == "Cookie" || name == "Connection" {
				t.Fatalf("header %s", name)
			}
		}

		r.Body = io.NopCloser(bytes.NewReader(body))
		again, err := httplock.Encode(r, int64(len(body))+1)
		if err != nil {
			t.Fatal(err)
		}
		r2, body2, err := httplock.Decode(context.Background(), again)
		if err != nil {
			t.Fatalf("%q: %v", again, err)
		}
		if r2.Method != r.Method || r2.RequestURI != r.RequestURI || !bytes.Equal(body2, body) || *r2.URL != *r.URL {
			t.Fatalf("%v became %v", r, r2)
		}
	})
}

func TestStoredHeaders(t *testing.T) {
	require.Equal(t, []string{
		"Accept", "Accept-Language", "Content-Encoding", "Content-Type", "Idempotency-Key",
		"If-Match", "If-Modified-Since", "If-None-Match", "If-Unmodified-Since", "Traceparent",
	}, httplock.StoredHeaders())
}

// seen is what a handler can know of its request.
type seen struct {
	method, uri, path, rawPath, rawQuery, id string
	query                                    map[string][]string
	header                                   http.Header // what is stored of it
	length                                   int64
	body                                     string
}

func see(r *http.Request) seen {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return seen{body: err.Error()}
	}
	header := http.Header{}
	for _, name := range []string{"Accept", "Accept-Language", "Content-Encoding", "Content-Type", "Idempotency-Key", "Traceparent", "X-Tag"} {
		if values := r.Header[name]; values != nil {
			header[name] = values
		}
	}
	return seen{
		r.Method, r.RequestURI, r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.PathValue("id"),
		r.URL.Query(), header, r.ContentLength, string(body),
	}
}

// A handler sees the same request, and its client the same response, whether it ran at once or was parked. It is long
// since most of it is a table.
func TestReplay_ParkedRequestsAreReplayedAsTheyWereSent(t *testing.T) {
	const maxBody = 1000
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(zip, strings.Repeat("zip ", 100))
	require.NoError(t, zip.Close())
	atCap := strings.Repeat("0123456789", maxBody/10)
	cases := map[string]struct {
		method, target, body string
		header               http.Header
		chunked              bool
	}{
		"slash in the path":     {target: "/orders/a%2Fb"},
		"encoded path":          {target: "/orders/caf%C3%A9%20%25%2B+"},
		"encoded letters":       {target: "/orders/%61"},
		"repeated query keys":   {target: "/orders/1?x=1&x=2&y=%20+&x=&z"},
		"query that is no pair": {target: "/orders/1?a;b=%zz&&?"},
		"empty query":           {target: "/orders/1?"},
		"headers of many values": {target: "/orders/1", header: http.Header{
			"X-Tag": {"a", "b, c", "", "a"}, "Accept": {"text/x;q=0.1", "*/*"}, "Accept-Language": {"de", "en"},
		}},
		"bytes above ASCII in a header": {target: "/orders/1", header: http.Header{"X-Tag": {"caf\xe9 \xff"}}},
		"binary body":                   {target: "/orders/1", body: "\x00\xff\r\n\n{\"v\":1}\n\xfe"},
		"gzip body":                     {target: "/orders/1", body: zipped.String(), header: http.Header{"Content-Encoding": {"gzip"}, "Content-Type": {"text/plain"}}},
		"unknown length":                {target: "/orders/1", body: "some body", chunked: true},
		"body at the cap":               {target: "/orders/1", body: atCap},
		"body at the cap, chunked":      {target: "/orders/1", body: atCap, chunked: true},
		"empty body":                    {target: "/orders/1"},
		"empty body, chunked":           {target: "/orders/1", chunked: true},
		"PATCH":                         {method: http.MethodPatch, target: "/orders/1", body: "[]"},
		"DELETE":                        {method: http.MethodDelete, target: "/orders/1"},
		"HEAD":                          {method: http.MethodHead, target: "/orders/1?h"},
		"GET":                           {method: http.MethodGet, target: "/orders/1"},
		"another method":                {method: "PURGE", target: "/orders/1", body: "x"},
	}
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		requests := make(chan seen, 1)
		d.handle(func(w http.ResponseWriter, r *http.Request) {
			s := see(r)
			requests <- s
			h := w.Header()
			h["Link"] = []string{"</a>; rel=a", "</b>; rel=b"}
			h.Set("ETag", `"1"`)
			h.Set("Location", "/orders/1/parts/"+r.PathValue("id"))
			w.WriteHeader(http.StatusCreated)
			h.Set("ETag", "too late")
			_, err := io.WriteString(w, "got "+s.body)
			assert.NoError(t, err)
		}, httplock.WithLockedSafeMethods(), httplock.WithAllowedHeaders("X-Tag"), httplock.WithMaxBody(maxBody))
		d.work(t)
		url, client := testbed.Serve(t, d.mux)
		for name, test := range cases {
			t.Run(name, func(t *testing.T) {
				ask := func() testbed.Answer {
					r := testbed.ToServer(t.Context(), t, url+test.target, test.body)
					if test.method != "" {
						r.Method = test.method
					}
					maps.Copy(r.Header, test.header)
					if test.chunked {
						r.ContentLength, r.Body = -1, io.NopCloser(strings.NewReader(test.body))
					}
					resp, err := testbed.Send(client, r)
					require.NoError(t, err)
					return resp
				}
				direct := ask()
				require.Equal(t, http.StatusCreated, direct.Status)
				want := <-requests
				if test.chunked {
					require.EqualValues(t, -1, want.length)
					want.length = int64(len(test.body)) // it is known now
				}

				release := d.HoldKey(t, "order:"+want.id)
				defer release()
				location := requireParked(t, ask())
				release()
				require.Equal(t, want, <-requests)

				kept := d.result(t, location)
				require.Equal(t, direct.Status, kept.Status)
				require.Equal(t, direct.Body, kept.Body)
				for _, name := range []string{"Link", "Etag", "Location", "Content-Type"} {
					if name == "Content-Type" && test.method == http.MethodHead {
						continue // net/http guesses it from a body that it does not send
					}
					require.Equal(t, direct.Header[name], kept.Header[name], name)
				}
			})
		}
	})
}
