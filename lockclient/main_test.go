package lockclient_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

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
