package httplock_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
