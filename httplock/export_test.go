package httplock

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// TicketsOver is TicketHandler over anything that answers as a queue does.
func TicketsOver(queue ticketQueue, authorize func(*http.Request, delayqueue.Status) bool) http.Handler {
	return &tickets{queue: queue, authorize: authorize}
}

// DecodedResult is a result that was read.
type DecodedResult struct {
	Status    int
	Header    http.Header
	Truncated bool
	Body      []byte
}

// DecodeResult reads the stored form of a result.
func DecodeResult(stored []byte) (*DecodedResult, error) {
	r, err := decodeResult(stored)
	if err != nil {
		return nil, err
	}
	return &DecodedResult{r.Status, r.Header, r.Truncated, r.body}, nil
}

// Encode is the stored form of a result.
func (d *DecodedResult) Encode() ([]byte, error) {
	return (&result{Status: d.Status, Header: d.Header, Truncated: d.Truncated, body: d.Body}).encode()
}

// WriteResult answers r with the stored result.
func (d *DecodedResult) WriteResult(w http.ResponseWriter, r *http.Request) {
	(&result{Status: d.Status, Header: d.Header, Truncated: d.Truncated, body: d.Body}).write(w, r)
}

// Encode stores a request with the default headers.
func Encode(r *http.Request, maxBody int64) ([]byte, error) {
	content, err := bodyOf(r).all(maxBody)
	if err != nil {
		return nil, err
	}
	return encode(r, content, storedHeaders(r, defaultHeaders), "")
}

// Decode makes a request of its stored form, and returns the body too.
func Decode(ctx context.Context, payload []byte) (*http.Request, []byte, error) {
	c, err := decode(payload)
	if err != nil {
		return nil, nil, err
	}
	r, err := c.request(ctx)
	return r, c.body, err
}

// ParsePrefer reads the values of Prefer.
func ParsePrefer(lines []string) core.Preference { return parsePrefer(lines) }

// ParseIdempotencyKey reads the values of Idempotency-Key.
func ParseIdempotencyKey(lines []string) (key string, there bool, err error) {
	return parseIdempotencyKey(lines)
}

// BodyAllocs is how often memory is allocated for what is done about r's body.
func BodyAllocs(m *Middleware, r *http.Request) float64 {
	return testing.AllocsPerRun(100, func() { ReadAhead(m, r) })
}

// ReadAhead reads r's body as a request's is before its key, and returns it to read.
func ReadAhead(m *Middleware, r *http.Request) io.ReadCloser {
	p := requestState{m: m, x: Exchange{Request: r, Key: func() (string, error) { return "k", nil }}}
	p.body.memory.bound = m.body.maxWaiting
	_, _ = p.key()
	_ = p.readAhead()
	_ = p.boundRest(r.Context())
	defer p.end()
	return p.body.reader()
}

// WaitingBytes is what the bodies of this process take up whose requests wait.
func WaitingBytes() int64 { return processBodies.Load() }

// TakeWaitingBytes has size bytes more taken up, until free is called.
func TakeWaitingBytes(size int64) (free func()) {
	processBodies.Add(size)
	return func() { processBodies.Add(-size) }
}

// Buffer is what a guard has in memory of a request's body.
func Buffer(r *http.Request) []byte { return r.Body.(*bodyReader).rest }
