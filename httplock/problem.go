package httplock

import (
	"encoding/json"
	"net/http"
	"time"
)

// problemsURL is where docs/problems.md is read. Each kind has a heading there.
const problemsURL = "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#"

// problemKind is a kind of refusal. Its texts say nothing about the request, so
// that they cannot repeat the key.
type problemKind struct {
	name   string
	status int
	title  string
	detail string
}

var (
	problemConflict = problemKind{
		"conflict", http.StatusConflict, "Another request is being worked on",
		"A request for the same resource is being worked on. This one was not started. Try again later.",
	}
	problemKeyFull = problemKind{
		"key-queue-full", http.StatusTooManyRequests, "Too many requests are waiting for this resource",
		"The resource is busy, and the limit of requests queued for it is reached. The request was not queued. Try again later.",
	}
	problemPrincipalFull = problemKind{
		"principal-queue-full", http.StatusTooManyRequests, "Too many of your requests are waiting",
		"The resource is busy, and the limit of your queued requests is reached. The request was not queued. Try again when some of them have run.",
	}
	problemQueueFull = problemKind{
		"queue-full", http.StatusServiceUnavailable, "The queue is full",
		"The resource is busy, and the queue is full. The request was not queued. Try again later.",
	}
	problemWaitingFull = problemKind{
		"waiting-full", http.StatusServiceUnavailable, "Too many requests are waiting",
		"The service's limit for the bodies of waiting requests is reached. The request was not started. Try again later.",
	}
	problemPrincipalWaitingFull = problemKind{
		"principal-waiting-full", http.StatusTooManyRequests, "Too many of your requests are waiting",
		"The limit of your waiting requests is reached. The request was not started. Try again when some of them have been answered.",
	}
	problemBodyTooLarge = problemKind{
		"body-too-large", http.StatusRequestEntityTooLarge, "The body is too large to be queued",
		"The resource is busy, and a body as large as this is never queued. The request was not started. " +
			"Send a smaller body, or send the request again until the resource is free: then it runs as it is.",
	}
	problemKeyBodyTooLarge = problemKind{
		"body-too-large", http.StatusRequestEntityTooLarge, "The body is too large",
		"The body names the resource, and is too large to be searched for the name. The request was not started. Send a smaller body.",
	}
	problemUnreadableBody = problemKind{
		"unreadable-body", http.StatusBadRequest, "The body could not be read",
		"The body ended before its announced length, or was malformed. The request was not started.",
	}
	problemSlowBody = problemKind{
		"body-timeout", http.StatusRequestTimeout, "The body did not arrive in time",
		"The body took too long to arrive. The request was not started, and may be sent again.",
	}
	problemBadKey = problemKind{
		"bad-key", http.StatusBadRequest, "The request does not name its resource",
		"The path parameter, header, query parameter or field of the body that names the resource is missing or invalid. The request was not started.",
	}
	problemNoIdempotencyKey = problemKind{
		"idempotency-key-missing", http.StatusBadRequest, "The Idempotency-Key is missing",
		"This request needs the header Idempotency-Key. It was not started.",
	}
	problemBadIdempotencyKey = problemKind{
		"idempotency-key-malformed", http.StatusBadRequest, "The Idempotency-Key is malformed",
		"The header Idempotency-Key must be one string of 1 to 255 printable ASCII characters. The request was not started.",
	}
	problemKeyReused = problemKind{
		"idempotency-key-reused", http.StatusUnprocessableEntity, "The Idempotency-Key was used for another request",
		"A request with another target, content or resource was made with this Idempotency-Key. This one was not started. Send it with a new key.",
	}
	problemNotKept = problemKind{
		"response-not-kept", http.StatusConflict, "The request was carried out before",
		"A request with this Idempotency-Key was carried out and answered, and its response was not kept. This one was not started. " +
			"Read the resource to see what the first one did.",
	}
	// The request is compared with those of its Idempotency-Key, which its body is part of.
	problemTooLargeToCompare = problemKind{
		"body-too-large", http.StatusRequestEntityTooLarge, "The body is too large for an Idempotency-Key",
		"The body is larger than that of a request with an Idempotency-Key may be. The request was not started. Send a smaller body.",
	}
	problemForbidden = problemKind{
		"forbidden", http.StatusForbidden, "Forbidden",
		"The sender of the request may not have it run. It was not started.",
	}
	problemUnavailable = problemKind{
		"unavailable", http.StatusServiceUnavailable, "The service cannot take requests now",
		"It is not known whether another request for the same resource is being worked on, so this one was not started. Try again later.",
	}
	problemTimeout = problemKind{
		"timeout", http.StatusServiceUnavailable, "The request waited too long",
		"The request's time ran out before the resource was free. The request was not started. Try again later.",
	}
	problemHandlerTimeout = problemKind{
		"handler-timeout", http.StatusServiceUnavailable, "The request took too long",
		"The request's time ran out before it was answered. It may still be running, and may take effect, wholly or in part. " +
			"Find out what it did before you send it again.",
	}
	problemSelfCall = problemKind{
		"self-call", http.StatusLoopDetected, "The request would wait for itself",
		"It was sent by a request that holds the same resource, and would wait until that one has ended. The request was not started.",
	}
	problemOutcomeUnknown = problemKind{
		"outcome-unknown", http.StatusInternalServerError, "Outcome unknown",
		"The request was started, and lost its lease on the resource before it ended. It may have taken effect, wholly or in part. " +
			"Find out what it did before you send it again.",
	}
	problemInternal = problemKind{
		"internal", http.StatusInternalServerError, "Internal error",
		"The service failed. The request was not started.",
	}
	problemMisconfigured = problemKind{
		"misconfigured", http.StatusInternalServerError, "Internal error",
		"The service is not set up to run this request safely. It was not started.",
	}
	problemNoTicket = problemKind{
		"no-such-ticket", http.StatusNotFound, "No such ticket",
		"There is no such ticket, or it is not yours.",
	}
	problemMethod = problemKind{
		"method-not-allowed", http.StatusMethodNotAllowed, "Method not allowed",
		"A ticket can be read with GET and HEAD, and cancelled with DELETE. Its result can only be read.",
	}
	problemTicketRunning = problemKind{
		"ticket-running", http.StatusConflict, "The request is running",
		"The request has been started, so it cannot be cancelled now.",
	}
	problemTicketEnded = problemKind{
		"ticket-ended", http.StatusConflict, "The request has ended",
		"The request has ended, so it cannot be cancelled any more.",
	}
)

// problem is a problem document of RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// RetryAfter is the Retry-After header with the precision that it lacks.
	RetryAfter int64 `json:"retry_after_ms,omitempty"`

	outcome OutcomeKind
}

// document makes a problem document. A retryAfter of zero: trying again is not
// advised.
func (k problemKind) document(retryAfter time.Duration) problem {
	return problem{
		Type: problemsURL + k.name, Title: k.title, Status: k.status, Detail: k.detail,
		RetryAfter: retryAfter.Milliseconds(), outcome: k.outcome(),
	}
}

func (p problem) write(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, r, p.Status, "application/problem+json", time.Duration(p.RetryAfter)*time.Millisecond, p)
}

// writeJSON writes a whole response.
func writeJSON(w http.ResponseWriter, r *http.Request, status int, mediaType string, retryAfter time.Duration, v any) {
	h := w.Header()
	prepareHeader(h, retryAfter)
	h.Set("Content-Type", mediaType)
	h.Set("X-Content-Type-Options", "nosniff")
	content, err := json.Marshal(v)
	if err != nil { // no value of ours can fail
		content = nil
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(append(content, '\n'))
	}
}
