package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Answer is a whole response.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Request makes a request for Do.
func Request(t testing.TB, method, target, body string) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
}

// Do sends a request to a handler, without a network.
func Do(h http.Handler, r *http.Request) Answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return Answer{w.Code, w.Result().Header, w.Body.String()}
}

// Call sends one request to a handler, without a network.
func Call(t testing.TB, h http.Handler, method, target, body string) Answer {
	t.Helper()
	return Do(h, Request(t, method, target, body))
}

// Serve starts a server, and returns a client that goes with it.
func Serve(t testing.TB, h http.Handler) (url string, client *http.Client) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	client = srv.Client()
	t.Cleanup(client.CloseIdleConnections)
	return srv.URL, client
}

// pipes is a listener of connections within a bubble.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// ServeInBubble starts a server, and returns what dials it.
func ServeInBubble(t testing.TB, srv *http.Server) (dial func() net.Conn) {
	t.Helper()
	l := make(pipes)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		assert.NoError(t, srv.Close())
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return func() net.Conn {
		near, far := net.Pipe()
		l <- far
		return near
	}
}

// ToServer makes a POST request for Send.
func ToServer(ctx context.Context, t testing.TB, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	return r
}

// Send sends a request to a server.
func Send(client *http.Client, r *http.Request) (Answer, error) {
	resp, err := client.Do(r)
	if err != nil {
		return Answer{}, err
	}
	content, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, string(content)}, errors.Join(err, resp.Body.Close())
}

// RequireProblem checks a whole problem document, and whether it says when to try again.
func RequireProblem(t testing.TB, resp Answer, status int, kind string, retry bool) {
	t.Helper()
	require.Equal(t, status, resp.Status, resp.Body)
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	RequireNoSecret(t, resp)

	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(resp.Body), &doc))
	require.Equal(t, "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#"+kind, doc["type"])
	require.EqualValues(t, status, doc["status"])
	require.NotEmpty(t, doc["title"])
	require.NotEmpty(t, doc["detail"])
	if !retry {
		require.NotContains(t, resp.Header, "Retry-After")
		require.NotContains(t, doc, "retry_after_ms")
		return
	}
	after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, after, 1)
	require.LessOrEqual(t, after, 30)
	ms, isNumber := doc["retry_after_ms"].(float64)
	require.True(t, isNumber)
	require.Positive(t, ms)
	require.LessOrEqual(t, ms, float64(after)*1000)
}

// RequireParked checks a receipt of a request that was parked, and returns where its
// ticket is, for a route with WithStatusPath("/tickets/").
func RequireParked(t testing.TB, resp Answer) (location string) {
	t.Helper()
	require.Equal(t, http.StatusAccepted, resp.Status, resp.Body)
	require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	RequireNoSecret(t, resp)
	var receipt struct {
		ID, State string
		ExpiresAt time.Time `json:"expires_at"`
	}
	require.NoError(t, json.Unmarshal([]byte(resp.Body), &receipt))
	require.Equal(t, "queued", receipt.State)
	require.False(t, receipt.ExpiresAt.IsZero())
	location = resp.Header.Get("Location")
	require.Equal(t, "/tickets/"+receipt.ID, location)
	require.Equal(t, "<"+location+`>; rel="status"`, resp.Header.Get("Link"))
	return location
}

// RequireNoSecret checks that the key is nowhere in a response.
func RequireNoSecret(t testing.TB, resp Answer) {
	t.Helper()
	require.NotContains(t, resp.Body, Secret)
	for name, values := range resp.Header {
		require.NotContains(t, strings.Join(values, " "), Secret, name)
	}
}
