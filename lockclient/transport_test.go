package lockclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/lockclient"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// network is a base that counts the response bodies that nobody has closed.
type network struct {
	send func(*http.Request) (*http.Response, error)
	open atomic.Int64
	sent atomic.Int64
}

type countedBody struct {
	io.ReadCloser
	open   *atomic.Int64
	closed atomic.Bool
}

func (b *countedBody) Close() error {
	if b.closed.CompareAndSwap(false, true) {
		b.open.Add(-1)
	}
	return b.ReadCloser.Close()
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.sent.Add(1)
	resp, err := n.send(r)
	if err == nil {
		n.open.Add(1)
		resp.Body = &countedBody{ReadCloser: resp.Body, open: &n.open}
	}
	return resp, err
}

// requireClosed requires that no body is left open.
func (n *network) requireClosed(t testing.TB) {
	t.Helper()
	require.Zero(t, n.open.Load(), "response bodies are left open")
}

// script answers one request after another, the last answer again and again, and keeps the requests with their bodies.
type script struct {
	network
	answers  []answer
	requests []*http.Request
	bodies   []string
}

type answer struct {
	err    error
	status int
	header http.Header
	body   string
	cut    bool // the connection is lost in the midst of the body
	hangs  bool // the body stops in its midst
}

func newScript(answers ...answer) *script {
	s := &script{answers: answers}
	s.send = func(r *http.Request) (*http.Response, error) {
		var body []byte
		if r.Body != nil {
			body, _ = io.ReadAll(r.Body)
			_ = r.Body.Close()
		}
		a := s.answers[min(len(s.requests), len(s.answers)-1)]
		s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		if a.err != nil {
			return nil, a.err
		}
		header := a.header.Clone()
		if header == nil {
			header = http.Header{}
		}
		var content io.Reader = strings.NewReader(a.body)
		if a.cut {
			content = io.MultiReader(strings.NewReader(a.body[:len(a.body)/2]), iotest.ErrReader(io.ErrUnexpectedEOF))
		}
		if a.hangs {
			content = io.MultiReader(strings.NewReader(a.body[:len(a.body)/2]), endless{r.Context()})
		}
		return &http.Response{
			StatusCode: a.status, Status: fmt.Sprint(a.status, " ", http.StatusText(a.status)), Header: header, Request: r,
			Body: io.NopCloser(content), ContentLength: int64(len(a.body)),
		}, nil
	}
	return s
}

const problems = "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#"

// problem is a document of perkey's.
func problem(status int, kind, retryAfter string) answer {
	a := answer{status: status, header: http.Header{"Content-Type": {"application/problem+json"}}, body: fmt.Sprintf(`{"type":%q,"status":%d}`, problems+kind, status)}
	if retryAfter != "" {
		a.header.Set("Retry-After", retryAfter)
	}
	return a
}

// with sets a header of an answer.
func (a answer) with(name, value string) answer {
	a.header = a.header.Clone()
	a.header.Set(name, value)
	return a
}

// endless is a body of which nothing comes any more.
type endless struct{ ctx context.Context }

func (e endless) Read([]byte) (int, error) {
	<-e.ctx.Done()
	return 0, e.ctx.Err()
}

// short returns the answer as it comes when the connection is lost in the midst of it.
func (a answer) short() answer {
	a.cut = true
	return a
}

var done = answer{status: http.StatusOK, header: http.Header{}, body: "done"}

func newTransport(t testing.TB, base http.RoundTripper, opts ...lockclient.Option) *lockclient.Transport {
	t.Helper()
	transport, err := lockclient.New(base, opts...)
	require.NoError(t, err)
	return transport
}

// request makes one whose body can be sent again.
func request(t testing.TB, method, url, body string, header ...string) *http.Request {
	t.Helper()
	var content io.Reader
	if body != "" {
		content = bytes.NewReader([]byte(body))
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, content)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// requireDone sends a request, and wants the response done.
func requireDone(t testing.TB, base http.RoundTripper, r *http.Request, opts ...lockclient.Option) {
	t.Helper()
	resp, err := newTransport(t, base, opts...).RoundTrip(r)
	require.NoError(t, err)
	require.Equal(t, "done", read(t, resp))
}

// read reads a response to its end.
func read(t testing.TB, resp *http.Response) string {
	t.Helper()
	content, err := io.ReadAll(resp.Body)
	assert.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	return string(content)
}

const orders = "http://shop.example/orders/7"

var conflict = problem(http.StatusConflict, "conflict", "2")

// What may be sent again is, with the same body and the same Idempotency-Key, after the time that the response says.
// It is long since most of it is a table.
func TestTransport_SendsAgainWhatMayBe(t *testing.T) {
	key := []string{"Idempotency-Key", "k1"}
	for name, test := range map[string]struct {
		method string
		body   string
		header []string
		first  answer
		again  bool
		lost   bool
	}{
		"GET":                             {method: http.MethodGet, first: conflict, again: true},
		"HEAD":                            {method: http.MethodHead, first: answer{status: 409, header: conflict.header}},
		"HEAD and a lost connection":      {method: http.MethodHead, first: answer{err: io.ErrUnexpectedEOF}, again: true},
		"PUT":                             {method: http.MethodPut, body: "b", first: conflict, again: true},
		"DELETE":                          {method: http.MethodDelete, first: conflict, again: true},
		"POST":                            {method: http.MethodPost, body: "b", first: conflict},
		"PATCH":                           {method: http.MethodPatch, body: "b", first: conflict},
		"POST with a key":                 {method: http.MethodPost, body: "b", header: key, first: conflict, again: true},
		"POST with an empty key":          {method: http.MethodPost, body: "b", header: []string{"Idempotency-Key", ""}, first: conflict},
		"429":                             {method: http.MethodPut, first: problem(429, "key-queue-full", "2"), again: true},
		"503":                             {method: http.MethodPut, first: problem(503, "unavailable", "2"), again: true},
		"a lost connection":               {method: http.MethodPut, body: "b", first: answer{err: io.ErrUnexpectedEOF}, again: true},
		"a lost connection of a POST":     {method: http.MethodPost, body: "b", first: answer{err: io.ErrUnexpectedEOF}},
		"a lost connection with a key":    {method: http.MethodPost, body: "b", header: key, first: answer{err: io.ErrUnexpectedEOF}, again: true},
		"a refusal that is cut short":     {method: http.MethodPut, body: "b", first: conflict.short(), again: true, lost: true},
		"no Retry-After":                  {method: http.MethodPut, first: problem(409, "response-not-kept", "")},
		"outcome unknown":                 {method: http.MethodPut, first: problem(500, "outcome-unknown", "2")},
		"a 503 of a proxy":                {method: http.MethodPut, first: answer{status: 503, header: http.Header{"Retry-After": {"2"}}, body: "<html>"}},
		"a problem of somebody else":      {method: http.MethodPut, first: answer{status: 503, header: conflict.header, body: `{"type":"about:blank"}`}},
		"a problem that is not JSON":      {method: http.MethodPut, first: answer{status: 503, header: conflict.header, body: `{`}},
		"a problem of another media type": {method: http.MethodPut, first: conflict.with("Content-Type", "application/json")},
		"a problem with a charset":        {method: http.MethodPut, first: conflict.with("Content-Type", "application/problem+json; charset=utf-8"), again: true},
		"a long time":                     {method: http.MethodPut, first: conflict.with("Retry-After", "1000000")},
		"an endless time":                 {method: http.MethodPut, first: conflict.with("Retry-After", strings.Repeat("9", 40))},
		"a time that overflows":           {method: http.MethodPut, first: conflict.with("Retry-After", "18446744075")},
		"a negative time":                 {method: http.MethodPut, first: conflict.with("Retry-After", "-1")},
		"no time":                         {method: http.MethodPut, first: conflict.with("Retry-After", "soon")},
		"an empty time":                   {method: http.MethodPut, first: conflict.with("Retry-After", "")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := newScript(test.first, done)
				began := time.Now()
				resp, err := newTransport(t, base).RoundTrip(request(t, test.method, orders, test.body, test.header...))
				if !test.again {
					require.Len(t, base.requests, 1)
					require.Zero(t, time.Since(began))
					if test.first.err != nil {
						require.ErrorIs(t, err, test.first.err)
						return
					}
					require.NoError(t, err)
					require.Equal(t, test.first.status, resp.StatusCode)
					require.Equal(t, test.first.body, read(t, resp), "the response is as it came")
					base.requireClosed(t)
					return
				}
				require.NoError(t, err)
				require.Equal(t, "done", read(t, resp))
				require.Equal(t, []string{test.body, test.body}, base.bodies)
				require.Equal(t, base.requests[0].Header, base.requests[1].Header)
				if test.first.err == nil && !test.lost {
					require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
					require.LessOrEqual(t, time.Since(began), 3*time.Second)
				}
				base.requireClosed(t)
			})
		})
	}
}

func TestTransport_WaitsAsRetryAfterSays(t *testing.T) {
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) } // a bubble's time is whole seconds
	for name, test := range map[string]struct {
		header func(http.Header)
		ms     int
		asked  time.Duration
	}{
		"seconds":                {func(h http.Header) { h.Set("Retry-After", "2") }, 0, 2 * time.Second},
		"zero":                   {func(h http.Header) { h.Set("Retry-After", "0") }, 0, 100 * time.Millisecond},
		"a date":                 {func(h http.Header) { h.Set("Retry-After", in(10*time.Second)) }, 0, 10 * time.Second},
		"a date that has passed": {func(h http.Header) { h.Set("Retry-After", in(-10*time.Second)) }, 0, 100 * time.Millisecond},
		"a date by another clock": {func(h http.Header) {
			h.Set("Date", in(-time.Hour))
			h.Set("Retry-After", in(4*time.Second-time.Hour))
		}, 0, 4 * time.Second},
		"milliseconds":          {func(h http.Header) { h.Set("Retry-After", "2") }, 1200, 1200 * time.Millisecond},
		"too many milliseconds": {func(h http.Header) { h.Set("Retry-After", "2") }, 1000000, 2 * time.Second},
		"negative milliseconds": {func(h http.Header) { h.Set("Retry-After", "2") }, -5, 2 * time.Second},
	} {
		took := map[time.Duration]bool{}
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				refused := problem(http.StatusConflict, "conflict", "")
				test.header(refused.header)
				refused.body = fmt.Sprintf(`{"type":"%sconflict","retry_after_ms":%d}`, problems, test.ms)
				began := time.Now()
				requireDone(t, newScript(refused, done), request(t, http.MethodPut, orders, ""))
				require.GreaterOrEqual(t, time.Since(began), test.asked, name)
				require.LessOrEqual(t, time.Since(began), test.asked*3/2, name)
				took[time.Since(began)] = true
			})
		}
		require.Greater(t, len(took), 10, "%s: there is jitter", name)
	}
}

// It gives up with the last response after as many attempts, or when the next one would be too late.
func TestTransport_GivesUp(t *testing.T) {
	for _, test := range []struct {
		opts []lockclient.Option
		ctx  time.Duration // 0: no deadline
		sent int
		most time.Duration
	}{
		{nil, 0, 5, 2 * (1 + 1 + 1 + 1) * 3 * time.Second},
		{[]lockclient.Option{lockclient.WithMaxAttempts(1)}, 0, 1, 0},
		{[]lockclient.Option{lockclient.WithMaxAttempts(100), lockclient.WithMaxWait(5 * time.Second)}, 0, 0, 5 * time.Second},
		{[]lockclient.Option{lockclient.WithMaxAttempts(100)}, 5 * time.Second, 0, 5 * time.Second},
		{[]lockclient.Option{lockclient.WithMaxWait(2 * time.Second)}, 0, 1, 0},
		{nil, 2 * time.Second, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(conflict)
			r := request(t, http.MethodPut, orders, "")
			if test.ctx > 0 {
				ctx, cancel := context.WithTimeout(r.Context(), test.ctx)
				defer cancel()
				r = r.WithContext(ctx)
			}
			began := time.Now()
			resp, err := newTransport(t, base, test.opts...).RoundTrip(r)
			require.NoError(t, err)
			require.Equal(t, http.StatusConflict, resp.StatusCode)
			require.Equal(t, conflict.body, read(t, resp))
			require.LessOrEqual(t, time.Since(began), test.most)
			if test.sent > 0 {
				require.Len(t, base.requests, test.sent)
			}
			base.requireClosed(t)
		})
	}
}

func TestTransport_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		base := newScript(conflict)
		began := time.Now()
		_, err := newTransport(t, base).RoundTrip(request(t, http.MethodPut, orders, "").WithContext(ctx))
		require.ErrorIs(t, err, why)
		require.Equal(t, time.Second, time.Since(began))
		require.Len(t, base.requests, 1)
		base.requireClosed(t)
	})
}

func TestTransport_ABodyThatCannotBeSentAgain(t *testing.T) {
	base := newScript(conflict, done)
	r := request(t, http.MethodPut, orders, "b")
	r.GetBody = nil
	resp, err := newTransport(t, base).RoundTrip(r)
	require.NoError(t, err)
	require.Equal(t, conflict.body, read(t, resp))

	synctest.Test(t, func(t *testing.T) { // such as after a redirect that dropped the body
		base := newScript(conflict, done)
		r := request(t, http.MethodPut, orders, "b")
		r.Body = nil
		requireDone(t, base, r)
		require.Equal(t, []string{"", ""}, base.bodies)
	})

	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("the file is gone")
		base := newScript(conflict, done)
		r := request(t, http.MethodPut, orders, "b")
		r.GetBody = func() (io.ReadCloser, error) { return nil, broken }
		_, err := newTransport(t, base).RoundTrip(r)
		require.ErrorIs(t, err, broken)
		base.requireClosed(t)
	})
}

// A random key is made for a POST and a PATCH that has none, and stays the same. The caller's request stays as it is.
func TestTransport_MakesIdempotencyKeys(t *testing.T) {
	keys := map[string]bool{}
	for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodGet} {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(conflict, done)
			r := request(t, method, orders, "b")
			requireDone(t, base, r, lockclient.WithIdempotencyKeys())
			require.NotContains(t, r.Header, "Idempotency-Key")
			first, second := base.requests[0].Header.Get("Idempotency-Key"), base.requests[1].Header.Get("Idempotency-Key")
			require.Equal(t, first, second)
			if method == http.MethodPost || method == http.MethodPatch {
				require.Len(t, first, 26)
				require.False(t, keys[first])
				keys[first] = true
			} else {
				require.Empty(t, first)
			}
		})
	}
	base := newScript(done)
	requireDone(t, base, request(t, http.MethodPost, orders, "b", "Idempotency-Key", "mine"), lockclient.WithIdempotencyKeys())
	require.Equal(t, "mine", base.requests[0].Header.Get("Idempotency-Key"))
}

// A redirect asks for the same request at another place: http.Client makes a new one, without the key that was made.
func TestTransport_KeepsTheKeyOverRedirects(t *testing.T) {
	for status, same := range map[int]bool{http.StatusTemporaryRedirect: true, http.StatusPermanentRedirect: true, http.StatusSeeOther: false} {
		to := answer{status: status, header: http.Header{"Location": {"/elsewhere"}}}
		base := newScript(conflict, to, to, conflict, done)
		client := &http.Client{Transport: newTransport(t, base, lockclient.WithIdempotencyKeys())}
		synctest.Test(t, func(t *testing.T) {
			resp, err := client.Do(request(t, http.MethodPost, orders, "b"))
			require.NoError(t, err)
			require.Equal(t, "done", read(t, resp))
		})
		first := base.requests[0].Header.Get("Idempotency-Key")
		require.Len(t, first, 26)
		for _, r := range base.requests[2:] {
			require.Equal(t, same, r.Header.Get("Idempotency-Key") == first, "%d: %s", status, r.Method)
		}
	}
}

// What is read of a response to see whether it is perkey's is given up when the time is over.
func TestTransport_ABodyThatHangsEndsWithTheTime(t *testing.T) {
	const most = 5 * time.Second
	for name, first := range map[string]answer{"a refusal": conflict, "a receipt": parked} {
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			synctest.Test(t, func(t *testing.T) {
				first.hangs = true
				began := time.Now()
				resp, err := newTransport(t, newScript(first), lockclient.WithMaxWait(most)).RoundTrip(request(t, method, orders, "b"))
				require.LessOrEqual(t, time.Since(began), most, name)
				require.NoError(t, err)
				if method == http.MethodPut || first.status == http.StatusAccepted {
					_, err = io.ReadAll(resp.Body)
					require.ErrorIs(t, err, context.Canceled, name)
				}
				require.NoError(t, resp.Body.Close())
			})
		}
	}
}

// A response that begins when the time is over is the caller's, whole.
func TestTransport_AResponseThatComesLateIsRead(t *testing.T) {
	for _, late := range []answer{conflict, done} {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(late)
			send := base.send
			base.send = func(r *http.Request) (*http.Response, error) {
				time.Sleep(10 * time.Second)
				return send(r)
			}
			resp, err := newTransport(t, base, lockclient.WithMaxWait(5*time.Second)).RoundTrip(request(t, http.MethodPut, orders, "b"))
			require.NoError(t, err)
			time.Sleep(10 * time.Second)
			require.Equal(t, late.body, read(t, resp))
		})
	}
}

func TestNew_TellsOfMistakes(t *testing.T) {
	for name, opt := range map[string]lockclient.Option{
		"WithMaxAttempts(0)": lockclient.WithMaxAttempts(0), "WithMaxAttempts(-1)": lockclient.WithMaxAttempts(-1),
		"WithMaxWait(0s)": lockclient.WithMaxWait(0), "WithMaxWait(-1s)": lockclient.WithMaxWait(-time.Second),
		"an option is nil": nil,
	} {
		_, err := lockclient.New(nil, opt)
		require.ErrorContains(t, err, name)
	}
}

// However long a test waits and however often it tries, no delay is out of bounds.
func TestTransport_ManyAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, first := range []answer{{err: io.EOF}, problem(503, "unavailable", "2147483647")} {
			base := newScript(first)
			began := time.Now()
			transport := newTransport(t, base, lockclient.WithMaxAttempts(40), lockclient.WithMaxWait(1<<63-1))
			resp, err := transport.RoundTrip(request(t, http.MethodPut, orders, ""))
			if first.err == nil {
				require.NoError(t, err)
				_ = read(t, resp)
				continue
			}
			require.Len(t, base.requests, 40)
			require.GreaterOrEqual(t, time.Since(began), 33*6400*time.Millisecond)
			require.LessOrEqual(t, time.Since(began), 39*3*6400*time.Millisecond)
		}
	})
}

type closer struct{ n int }

func (c *closer) RoundTrip(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("unused") }
func (c *closer) CloseIdleConnections()                           { c.n++ }

func TestTransport_ClosesIdleConnectionsOfItsBase(t *testing.T) {
	base := &closer{}
	(&http.Client{Transport: newTransport(t, base)}).CloseIdleConnections()
	require.Equal(t, 1, base.n)
	(&http.Client{Transport: newTransport(t, newScript(done))}).CloseIdleConnections()
}
