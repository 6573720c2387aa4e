// Package lockclient is for Go clients of services that perkey guards. [New] wraps an [http.RoundTripper], and the client
// sees what it would have seen if nobody else had wanted the resource:
//
//	transport, err := lockclient.New(http.DefaultTransport)
//	client := &http.Client{Transport: transport}
//
// It knows a service by its responses alone, which docs/problems.md describes, and links nothing but the standard library.
//
// # Refused requests
//
// A request is sent again after 409, 429 or 503 with Retry-After, if the response is a problem document of perkey's, and after
// an error of the base, such as a lost connection. The delay is retry_after_ms or Retry-After (seconds or a date), and jitter, which
// grows with the attempts: as much as half of the delay at first, and twice the delay from the fourth on. After an error the delay is
// 0.1 s, and doubles up to 6.4 s. A response to HEAD has no document: HEAD is sent again after an error alone.
//
// Only what may run twice is sent again: GET, HEAD, OPTIONS, TRACE, PUT and DELETE, and whatever has an
// Idempotency-Key, which stays the same. A refused request was not run, but to send a POST again is for its caller to decide: the request that was
// in the way may have been the same one, of a user who clicked twice. A body is sent again if the request has GetBody, as
// those of [http.NewRequest] from a bytes.Reader, a bytes.Buffer or a strings.Reader have.
//
// The last response, or error, is returned as it is after [WithMaxAttempts] attempts, or if the next would be later than [WithMaxWait] or
// the deadline of the request's context. So is any response that perkey has not made, such as a 503 of a proxy, and
// one of a service that writes its refusals in a form of its own (httplock.WithConflictHandler).
//
// # Parked requests
//
// A receipt, 202 with the ticket of a parked request in Location, is followed: the ticket is asked for with "Prefer: wait=25", or
// as often as Retry-After says, until its state is done. An answer that is 10 s late is given up, and the ticket asked for again
// without the wait. In the end the response is that of the replay, 4xx and 5xx too, with the headers that the service stores, and its
// Request is the one that was parked. Otherwise there is a [TicketError].
//
// With [http.Client.Timeout] the error is the client's own, without the ticket: give the request's context a deadline in its place.
//
// A caller that wants the receipt itself sends "Prefer: respond-async". Other 202s, and a Location at another scheme, host
// or port, are returned as they are: the questions have the request's credentials, which are all of its headers but those
// that are about its body, its conditions and its connection. If they are made by a RoundTripper, such as one that signs requests, it must be
// the base.
package lockclient
