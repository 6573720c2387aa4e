package lockclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	longPoll     = 25 * time.Second // proxies often end a response that takes 30 s to begin
	answerTime   = 10 * time.Second // of one question, beside what the server was asked to wait
	defaultPause = time.Second      // between two questions
	maxPause     = 30 * time.Second // whatever Retry-After says
)

// TicketError says why a parked request has no response. In the states expired, cancelled and superseded it does not run; in dead
// an attempt may have taken effect; in any other it may still run, and its URL says what became of it.
type TicketError struct {
	// URL is the ticket's address.
	URL string `json:"-"`
	// ID is the ticket's id.
	ID string `json:"id"`
	// State is the last known one: queued, running, done, dead, expired, cancelled or superseded.
	State string `json:"state"`
	// LastStatus is the status of the last attempt, of a dead ticket that has one.
	LastStatus int `json:"last_status"`
	// SupersededBy is the id of the newer request's ticket, if the service tells it.
	SupersededBy string `json:"superseded_by"`
	// Err is why the ticket was not followed to its end: the cause of the request's context;
	// [context.DeadlineExceeded] when the time of [WithMaxWait] was over; or what was wrong with an answer. Nil: State is the end.
	Err error `json:"-"`
}

// Error has the ticket's id and state, and Err.
func (e *TicketError) Error() string {
	text := fmt.Sprintf("lockclient: the request was parked, and its ticket %s is %s", e.ID, e.State)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *TicketError) Unwrap() error { return e.Err }

// follow asks for the ticket of a parked request until it has ended, and returns the stored response. Any other 202 it
// returns as it is.
func (t *Transport) follow(r *http.Request, receipt *http.Response, until time.Time) (*http.Response, error) {
	read := cancelAt(receipt, until)
	at, ticket := ticketOf(r, receipt)
	read()
	if at == nil {
		return receipt, nil
	}
	_ = receipt.Body.Close() // it was read to its end
	ctx, cancel := context.WithDeadline(r.Context(), until)
	defer cancel()
	wait := longPoll
	for failures := 0; ; {
		began := time.Now()
		location, after, err := t.ask(ctx, r, at, min(wait, room(ctx, until)), ticket)
		switch {
		case err == nil && ticket.State == "done":
			return t.result(r, at, location, until, ticket)
		case err == nil && ticket.State != "queued" && ticket.State != "running":
			return nil, ticket
		case err == nil:
			failures = 0
			after = max(0, min(max(after, minDelay), maxPause)-time.Since(began))
		default:
			failures++
			wait = 0 // it may be the waiting that fails, in a proxy or for the server's WriteTimeout
			if ticket.Err = err; failures == t.maxAttempts || !errors.Is(err, errAskAgain) {
				return nil, ticket
			}
			after = max(backoff(failures), min(after, maxPause))
		}
		if ticket.Err = sleep(ctx, after+jitter(1, after, maxPause)); ticket.Err != nil {
			return nil, ticket
		}
	}
}

// ticketOf reads the receipt of a parked request: where its ticket is, and its state. There is none in the response of a
// service that is not perkey's, at another origin, which must not have the request's credentials, and of a request that
// prefers the receipt.
func ticketOf(r *http.Request, receipt *http.Response) (*url.URL, *TicketError) {
	location := receipt.Header.Get("Location")
	if location == "" || strings.Contains(strings.ToLower(strings.Join(r.Header["Prefer"], ",")), "respond-async") {
		return nil, nil
	}
	ticket := &TicketError{}
	at := sameOrigin(r.URL, location)
	if at == nil {
		return nil, nil
	}
	if ok, _ := decode(receipt, "application/json", ticket); !ok || ticket.State != "queued" || ticket.ID == "" || path.Base(at.Path) != ticket.ID {
		return nil, nil
	}
	ticket.URL = at.String()
	return at, ticket
}

// errAskAgain is wrapped by failures after which the ticket is asked for again.
var errAskAgain = errors.New("the ticket could not be asked for")

// ask asks for a ticket once, and waits in the server for its end. It returns where the result is, if there is one, and when
// to ask again.
func (t *Transport) ask(ctx context.Context, r *http.Request, at *url.URL, wait time.Duration, ticket *TicketError) (location string, after time.Duration, err error) {
	limited, cancel := context.WithTimeout(ctx, wait+answerTime)
	defer cancel()
	lost := func(err error) error {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %s", wait+answerTime)
		}
		return fmt.Errorf("%w: %w", errAskAgain, err)
	}
	question := get(limited, r, at)
	question.Header.Del("Accept-Encoding") // a caller that set it decodes what it asked for, not this
	if wait >= time.Second {
		question.Header.Set("Prefer", "wait="+strconv.FormatInt(int64(wait/time.Second), 10))
	}
	resp, err := t.base.RoundTrip(question) //nolint:bodyclose // discard closes it
	if err != nil {
		return "", 0, lost(err)
	}
	defer discard(resp.Body)
	after, ok := retryAfter(resp.Header)
	if !ok {
		after = defaultPause
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusSeeOther:
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "", after, fmt.Errorf("%w: %s", errAskAgain, resp.Status)
	default:
		return "", 0, fmt.Errorf("the ticket was answered with %s", resp.Status)
	}
	now := TicketError{URL: ticket.URL}
	ok, err = decode(resp, "application/json", &now)
	if err != nil {
		return "", 0, lost(err)
	}
	if !ok || now.ID != ticket.ID || now.State == "" {
		return "", 0, errors.New("the ticket was answered with something else")
	}
	*ticket = now
	return resp.Header.Get("Location"), after, nil
}

// result returns the response that the replay was answered with.
func (t *Transport) result(r *http.Request, at *url.URL, location string, until time.Time, ticket *TicketError) (*http.Response, error) {
	from := sameOrigin(at, location)
	if from == nil {
		ticket.Err = fmt.Errorf("its result is not at the ticket's origin: %q", location)
		return nil, ticket
	}
	unavailable := []int{http.StatusServiceUnavailable} // any other refusal is the replay's response
	resp, err := t.send(get(r.Context(), r, from), until, unavailable)
	if err != nil {
		ticket.Err = err
		return nil, ticket
	}
	if resp.StatusCode == http.StatusNotFound {
		defer cancelAt(resp, until)()
		if kind, _ := problemOf(resp); kind == "no-such-ticket" {
			discard(resp.Body)
			ticket.Err = errors.New("its result is gone")
			return nil, ticket
		}
	}
	resp.Request = r
	return resp, nil
}

// get makes a request for a ticket, on behalf of whoever sent r: it has those headers of r that are not about r itself.
func get(ctx context.Context, r *http.Request, at *url.URL) *http.Request {
	header := http.Header{}
	for name, values := range r.Header {
		switch name {
		case idempotencyKey, "Connection", "Expect", "Keep-Alive", "Perkey-Trail", "Prefer", "Range", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		default:
			if !strings.HasPrefix(name, "Content-") && !strings.HasPrefix(name, "If-") {
				header[name] = slices.Clone(values)
			}
		}
	}
	return (&http.Request{Method: http.MethodGet, URL: at, Host: r.Host, Header: header}).WithContext(ctx)
}

// sameOrigin returns where a Location in an answer of base leads to, or nil if that is another origin.
func sameOrigin(base *url.URL, location string) *url.URL {
	at, err := base.Parse(location)
	if err != nil || location == "" || at.Scheme != base.Scheme || !strings.EqualFold(at.Host, base.Host) {
		return nil
	}
	at.User = nil
	return at
}
