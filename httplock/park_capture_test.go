package httplock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
