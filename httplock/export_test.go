package httplock

import (
	"context"
	"net/http"

	"github.com/perkey-go/perkey/delayqueue"
)

// TicketsOver is TicketHandler over any source of statuses.
func TicketsOver(
	status func(context.Context, string) (delayqueue.Status, error),
	authorize func(*http.Request, delayqueue.Status) bool,
) http.Handler {
	return &tickets{status: status, authorize: authorize}
}

// Encode stores a request with the default headers.
func Encode(r *http.Request, maxBody int64) ([]byte, error) {
	return encode(r, newBody(r, maxBody), defaultHeaders())
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
