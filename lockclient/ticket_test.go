package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/lockclient"
)

const (
	id       = "0123456789abcdef0123456789abcdef"
	ticketAt = "http://shop.example/tickets/" + id
)

var (
	parked = answer{
		status: http.StatusAccepted, body: `{"id":"` + id + `","state":"queued","expires_at":"2027-01-15T08:00:00.000Z"}`,
		header: http.Header{"Content-Type": {"application/json"}, "Location": {"/tickets/" + id}, "Retry-After": {"1"}},
	}
	ended    = ticket(http.StatusSeeOther, "done").with("Location", id+"/result")
	notThere = problem(http.StatusNotFound, "no-such-ticket", "")
)

// ticket is the answer of a status resource.
func ticket(status int, state string) answer {
	return answer{
		status: status, header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}},
		body: fmt.Sprintf(`{"id":%q,"state":%q,"attempts":0,"conflicts":0}`, id, state),
	}
}

func TestTransport_FollowsTheTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		result := answer{status: http.StatusUnprocessableEntity, header: http.Header{"Content-Type": {"text/plain"}, "Etag": {`"1"`}}, body: "no"}
		base := newScript(parked, ticket(200, "queued"), ticket(200, "running"), ended, result)
		r := request(t, http.MethodPost, orders, `{"a":1}`, "Authorization", "Bearer x", "X-Tenant", "t", "Idempotency-Key", "k",
			"Content-Type", "application/json", "Content-Language", "de", "If-Match", `"0"`, "Prefer", "wait=3", "Perkey-Trail", "trail", "Expect", "100-continue")
		r.Host = "public.example"
		type mark struct{}
		r = r.WithContext(context.WithValue(r.Context(), mark{}, "of the caller"))
		began := time.Now()
		resp, err := newTransport(t, base).RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode)
		require.Equal(t, "no", read(t, resp))
		require.Equal(t, `"1"`, resp.Header.Get("Etag"))
		require.Same(t, r, resp.Request)
		require.GreaterOrEqual(t, time.Since(began), 2*time.Second, "two answers asked to wait for a second")
		require.LessOrEqual(t, time.Since(began), 3*time.Second)
		for i, asked := range base.requests[1:] {
			require.Equal(t, http.MethodGet, asked.Method)
			require.Equal(t, "public.example", asked.Host)
			require.Equal(t, "of the caller", asked.Context().Value(mark{}))
			want := http.Header{"Authorization": {"Bearer x"}, "X-Tenant": {"t"}}
			at := ticketAt
			if i < 3 {
				want.Set("Prefer", "wait=25")
			} else {
				at += "/result"
			}
			require.Equal(t, want, asked.Header)
			require.Equal(t, at, asked.URL.String())
			require.Empty(t, base.bodies[i+1])
		}
		base.requireClosed(t)
	})
}

// What is not a receipt of perkey's, with a ticket at the same origin, is the response.
func TestTransport_LeavesOther202Alone(t *testing.T) {
	for name, a := range map[string]answer{
		"no Location":        parked.with("Location", ""),
		"another host":       parked.with("Location", "http://evil.example/tickets/"+id),
		"another port":       parked.with("Location", "http://shop.example:81/tickets/"+id),
		"another scheme":     parked.with("Location", "https://shop.example/tickets/"+id),
		"a port's scheme":    parked.with("Location", "https://shop.example:80/tickets/"+id),
		"no scheme":          parked.with("Location", "//evil.example/tickets/"+id),
		"a broken Location":  parked.with("Location", "http://shop.example:x/%zz"),
		"another ticket's":   parked.with("Location", "/tickets/other"),
		"not JSON":           parked.with("Content-Type", "text/plain"),
		"other JSON":         {status: 202, header: parked.header, body: `{"job":1}`},
		"broken JSON":        {status: 202, header: parked.header, body: `{"id":`},
		"an array":           {status: 202, header: parked.header, body: `[]`},
		"nothing":            {status: 202, header: parked.header},
		"a very long body":   {status: 202, header: parked.header, body: parked.body[:len(parked.body)-1] + `,"x":"` + strings.Repeat("x", 100000) + `"}`},
		"already in the end": {status: 202, header: parked.header, body: `{"id":"` + id + `","state":"done"}`},
	} {
		base := newScript(a)
		resp, err := newTransport(t, base).RoundTrip(request(t, http.MethodPost, orders, "b", "Authorization", "Bearer x"))
		require.NoError(t, err, name)
		require.Equal(t, http.StatusAccepted, resp.StatusCode, name)
		require.Equal(t, a.body, read(t, resp), name)
		require.Len(t, base.requests, 1, name)
		base.requireClosed(t)
	}
	base := newScript(parked)
	resp, err := newTransport(t, base).RoundTrip(request(t, http.MethodPost, orders, "b", "Prefer", "wait=1, Respond-Async"))
	require.NoError(t, err)
	require.Equal(t, parked.body, read(t, resp), "who prefers the receipt has it")
	require.Len(t, base.requests, 1)
}

func TestTransport_SameOriginInOtherWords(t *testing.T) {
	base := newScript(parked.with("Location", "http://user:pass@SHOP.example/tickets/"+id), ended, done)
	requireDone(t, base, request(t, http.MethodPost, orders, "b"))
	require.Nil(t, base.requests[1].URL.User)
}

func TestTicketError_SaysWhatBecameOfTheRequest(t *testing.T) {
	lost := errors.New("connection reset")
	for name, test := range map[string]struct {
		answers []answer
		want    lockclient.TicketError
		err     string
		sent    int // 0: one more than there are answers
	}{
		"dead":               {[]answer{{status: 200, header: ended.header, body: `{"id":"` + id + `","state":"dead","last_status":503}`}}, lockclient.TicketError{State: "dead", LastStatus: 503}, "", 0},
		"expired":            {[]answer{ticket(200, "expired")}, lockclient.TicketError{State: "expired"}, "", 0},
		"cancelled":          {[]answer{ticket(200, "running"), ticket(200, "cancelled")}, lockclient.TicketError{State: "cancelled"}, "", 0},
		"superseded":         {[]answer{{status: 200, header: ended.header, body: `{"id":"` + id + `","state":"superseded","superseded_by":"b"}`}}, lockclient.TicketError{State: "superseded", SupersededBy: "b"}, "", 0},
		"a new state":        {[]answer{ticket(200, "merged")}, lockclient.TicketError{State: "merged"}, "", 0},
		"gone":               {[]answer{notThere}, lockclient.TicketError{State: "queued"}, "404", 0},
		"forbidden":          {[]answer{ticket(200, "running"), {status: 403}}, lockclient.TicketError{State: "running"}, "403", 0},
		"a redirect":         {[]answer{{status: 302, header: http.Header{"Location": {"http://evil.example/"}}}}, lockclient.TicketError{State: "queued"}, "302", 0},
		"somebody else":      {[]answer{{status: 200, header: http.Header{"Content-Type": {"text/html"}}, body: "<html>"}}, lockclient.TicketError{State: "queued"}, "something else", 0},
		"no state":           {[]answer{{status: 200, header: ended.header, body: `{"id":"` + id + `"}`}}, lockclient.TicketError{State: "queued"}, "something else", 0},
		"another ticket":     {[]answer{{status: 200, header: ended.header, body: `{"id":"x","state":"done"}`}}, lockclient.TicketError{State: "queued"}, "something else", 0},
		"never there":        {[]answer{{err: lost}}, lockclient.TicketError{State: "queued"}, "connection reset", 6},
		"a bad gateway":      {[]answer{{status: 502}}, lockclient.TicketError{State: "queued"}, "502", 6},
		"a result elsewhere": {[]answer{ended.with("Location", "http://evil.example/")}, lockclient.TicketError{State: "done"}, "origin", 0},
		"no result":          {[]answer{ended.with("Location", "")}, lockclient.TicketError{State: "done"}, "origin", 0},
		"a result that went": {[]answer{ended, notThere}, lockclient.TicketError{State: "done"}, "gone", 0},
		"a lost result":      {[]answer{ended, {err: lost}}, lockclient.TicketError{State: "done"}, "connection reset", 7},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := newScript(append([]answer{parked}, test.answers...)...)
				_, err := (&http.Client{Transport: newTransport(t, base)}).Do(request(t, http.MethodPost, orders, "b"))
				var got *lockclient.TicketError
				require.ErrorAs(t, err, &got)
				if test.err == "" {
					require.NoError(t, got.Err)
				} else {
					require.ErrorContains(t, got.Err, test.err)
				}
				require.ErrorContains(t, got, "its ticket "+id+" is "+test.want.State)
				test.want.URL, test.want.ID, test.want.Err = ticketAt, id, got.Err
				require.Equal(t, test.want, *got)
				if test.sent == 0 {
					test.sent = 1 + len(test.answers)
				}
				require.Len(t, base.requests, test.sent)
				base.requireClosed(t)
			})
		})
	}
}

// A ticket that does not end is followed until the context ends, or for as long as WithMaxWait says.
func TestTransport_ATicketThatDoesNotEnd(t *testing.T) {
	for _, a := range []answer{ticket(200, "running"), ticket(200, "running").with("Retry-After", "1000000"), ticket(200, "running").with("Retry-After", "-3"), ticket(200, "running").with("Retry-After", "soon")} {
		synctest.Test(t, func(t *testing.T) {
			why := errors.New("the user left")
			base := newScript(parked, a)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(50500*time.Millisecond, func() { cancel(why) })
			began := time.Now()
			_, err := newTransport(t, base).RoundTrip(request(t, http.MethodPost, orders, "b").WithContext(ctx))
			require.ErrorIs(t, err, why)
			require.Equal(t, 50500*time.Millisecond, time.Since(began))
			require.GreaterOrEqual(t, len(base.requests), 3, "it is asked twice in this time, whatever Retry-After says")
			require.LessOrEqual(t, len(base.requests), 52)

			base = newScript(parked, a)
			began = time.Now()
			_, err = newTransport(t, base, lockclient.WithMaxWait(10*time.Second)).RoundTrip(request(t, http.MethodPost, orders, "b"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			var got *lockclient.TicketError
			require.ErrorAs(t, err, &got)
			require.Equal(t, "running", got.State)
			require.Equal(t, 10*time.Second, time.Since(began))
			require.Equal(t, "wait=10", base.requests[1].Header.Get("Prefer"), "no longer than there is time")
			base.requireClosed(t)
		})
	}
}

// An answer that asks to be asked again at once, and waits for nothing, is not asked for in a loop without a pause.
func TestTransport_RetryAfterNothing(t *testing.T) {
	for _, after := range []string{"0", "Thu, 01 Jan 1998 00:00:00 GMT"} {
		synctest.Test(t, func(t *testing.T) {
			answers := []answer{parked}
			for range 20 {
				answers = append(answers, ticket(200, "running").with("Retry-After", after))
			}
			base := newScript(append(answers, ended, done)...)
			began := time.Now()
			requireDone(t, base, request(t, http.MethodPost, orders, "b"))
			require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
			require.LessOrEqual(t, time.Since(began), 4*time.Second)
		})
	}
}

// A server that holds the connection, before its answer or within it, takes no more time than an answer may: the ticket is asked for again.
func TestTransport_AskingIsHeld(t *testing.T) {
	for _, within := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(parked, ended, done)
			send, held := base.send, false
			base.send = func(r *http.Request) (*http.Response, error) {
				if len(base.requests) != 1 || held {
					return send(r)
				}
				held = true
				if !within {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				body, w := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = w.CloseWithError(r.Context().Err()) })
				return &http.Response{StatusCode: http.StatusOK, Header: ended.header, Body: body}, nil
			}
			began := time.Now()
			requireDone(t, base, request(t, http.MethodPost, orders, "b"), lockclient.WithMaxWait(time.Hour))
			require.LessOrEqual(t, time.Since(began), time.Minute)

			base.requests, held = nil, false
			_, err := newTransport(t, base, lockclient.WithMaxAttempts(1), lockclient.WithMaxWait(time.Hour)).RoundTrip(request(t, http.MethodPost, orders, "b"))
			require.ErrorContains(t, err, "no answer within 35s")
			require.NotErrorIs(t, err, context.DeadlineExceeded, "WithMaxWait was not over")
			base.requireClosed(t)
		})
	}
}

// A caller that decodes responses itself has the result as it asked for it, and needs not decode what is said of the ticket.
func TestTransport_AcceptEncodingIsTheResults(t *testing.T) {
	base := newScript(parked, ended, done)
	requireDone(t, base, request(t, http.MethodPost, orders, "b", "Accept-Encoding", "gzip"))
	require.NotContains(t, base.requests[1].Header, "Accept-Encoding")
	require.Equal(t, "gzip", base.requests[2].Header.Get("Accept-Encoding"))
}

// A result is the replay's response, a refusal of perkey's too, as of a service that it called. What is not the result is asked for again.
func TestTransport_AResultThatIsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, result := range []answer{conflict, problem(http.StatusTooManyRequests, "key-queue-full", "2")} {
			base := newScript(parked, ended, problem(http.StatusServiceUnavailable, "unavailable", "2"), result)
			resp, err := newTransport(t, base).RoundTrip(request(t, http.MethodPost, orders, "b"))
			require.NoError(t, err)
			require.Equal(t, result.body, read(t, resp))
			require.Len(t, base.requests, 4)
			base.requireClosed(t)
		}
	})
}

// A base other than [http.Transport] may take requests without headers.
func TestTransport_NoHeaders(t *testing.T) {
	base := newScript(parked, ended, done)
	r := request(t, http.MethodPost, orders, "b")
	r.Header = nil
	requireDone(t, base, r)
}

// A server that waits is asked again at once, and one that says that it waited, but has not, is not.
func TestTransport_AsksAgainWithoutAPauseAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newScript(parked, ticket(200, "queued"), ticket(200, "queued").with("Preference-Applied", "wait=25"), ended, done)
		send := base.send
		base.send = func(r *http.Request) (*http.Response, error) {
			if len(base.requests) == 1 {
				time.Sleep(25 * time.Second)
			}
			return send(r)
		}
		began := time.Now()
		requireDone(t, base, request(t, http.MethodPost, orders, "b"))
		require.GreaterOrEqual(t, time.Since(began), 26*time.Second)
		require.LessOrEqual(t, time.Since(began), 26500*time.Millisecond)
	})
}

// If it is the waiting that fails, as behind a proxy with a short timeout, the ticket is asked for without.
func TestTransport_AsksWithoutWaitingAfterAFailure(t *testing.T) {
	for _, failure := range []answer{{err: io.ErrUnexpectedEOF}, {status: 504}, {status: 502}, problem(503, "unavailable", "3"), {status: 429}} {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(parked, ticket(200, "queued"), failure, ticket(200, "queued"), ended, done)
			began := time.Now()
			requireDone(t, base, request(t, http.MethodPost, orders, "b"))
			if failure.header.Get("Retry-After") != "" {
				require.GreaterOrEqual(t, time.Since(began), 5*time.Second, "one and three and one")
			}
			var prefers []string
			for _, r := range base.requests[1:] {
				prefers = append(prefers, r.Header.Get("Prefer"))
			}
			require.Equal(t, []string{"wait=25", "wait=25", "", "", ""}, prefers)
			base.requireClosed(t)
		})
	}
}

// Only failures one after another count.
func TestTransport_AskingFailsNowAndThen(t *testing.T) {
	took := map[time.Duration]bool{}
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			lost := answer{err: io.ErrUnexpectedEOF}
			base := newScript(parked, lost, lost, lost, lost, ticket(200, "queued"), lost, lost, lost, lost, ended, done)
			began := time.Now()
			requireDone(t, base, request(t, http.MethodPost, orders, "b"))
			took[time.Since(began)] = true
		})
	}
	require.Greater(t, len(took), 5, "there is jitter")
}

// An answer that is cut short is a lost connection: the receipt is asked for again, and so is the ticket.
func TestTransport_ATicketThatIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newScript(parked.short(), parked, ticket(200, "queued").short(), ended.short(), ended, done)
		requireDone(t, base, request(t, http.MethodPost, orders, "b", "Idempotency-Key", "k"))
		require.Equal(t, []string{"b", "b", "", "", "", ""}, base.bodies)
		base.requireClosed(t)
	})
}

// A result that redirects is the client's to follow, as if the request had not been parked. It stops a loop.
func TestTransport_RedirectLoop(t *testing.T) {
	base := newScript(parked, ended.with("Location", "/tickets/"+id))
	client := &http.Client{Transport: newTransport(t, base)}
	_, err := client.Do(request(t, http.MethodPost, orders, "b"))
	require.ErrorContains(t, err, "redirects")
	require.LessOrEqual(t, len(base.requests), 20)
	base.requireClosed(t)
}

// Whichever way another origin comes in, by redirects of the request, of its ticket or of its result, it gets no credentials.
func TestTransport_CredentialsStayAtTheirOrigin(t *testing.T) {
	moved := func(status int, to string) answer {
		return answer{status: status, header: http.Header{"Location": {to}}}
	}
	const evil = "http://evil.example"
	for name, test := range map[string]struct {
		shop, evil []answer
		err        string
	}{
		"a redirect to a ticket":         {[]answer{moved(307, evil+"/")}, []answer{parked, ended, done}, ""},
		"a redirect, and a ticket back":  {[]answer{moved(307, evil+"/")}, []answer{parked.with("Location", ticketAt)}, ""},
		"a ticket elsewhere":             {[]answer{parked.with("Location", evil+"/tickets/"+id)}, nil, ""},
		"a ticket that redirects":        {[]answer{parked, moved(307, evil+"/tickets/"+id)}, nil, "307"},
		"a result elsewhere":             {[]answer{parked, ended.with("Location", evil+"/")}, nil, "origin"},
		"a result that redirects":        {[]answer{parked, ended, moved(303, evil+"/")}, []answer{done}, ""},
		"a result that redirects a body": {[]answer{parked, ended, moved(307, evil+"/")}, []answer{done}, ""},
	} {
		shop, other := newScript(test.shop...), newScript(test.evil...)
		base := &network{send: func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "shop.example" {
				return shop.send(r)
			}
			require.Equal(t, "evil.example", r.URL.Host, name)
			require.NotContains(t, r.Header, "Authorization", name)
			require.NotContains(t, r.Header, "Cookie", name)
			return other.send(r)
		}}
		resp, err := (&http.Client{Transport: newTransport(t, base)}).Do(request(t, http.MethodPost, orders, "b", "Authorization", "Bearer x", "Cookie", "a=b"))
		if test.err != "" {
			require.ErrorContains(t, err, test.err, name)
		} else {
			require.NoError(t, err, name)
			_ = read(t, resp)
		}
		require.Len(t, shop.requests, len(test.shop), name)
		require.Len(t, other.requests, len(test.evil), name)
		base.requireClosed(t)
	}
}
