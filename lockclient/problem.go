package lockclient

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// problems is where perkey's problems are described. Their type begins with it.
const problems = "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#"

// maxDocument bounds what is read of a body to recognise it. perkey's documents are shorter.
const maxDocument = 16 << 10

// refusals are the statuses of refused requests.
var refusals = []int{http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable}

// refusedFor returns after which time a refused request may be sent again, if its response has one of the statuses and is a problem
// document of perkey that says so.
func refusedFor(resp *http.Response, statuses []int) (time.Duration, bool) {
	if !slices.Contains(statuses, resp.StatusCode) {
		return 0, false
	}
	after, ok := retryAfter(resp.Header)
	if !ok {
		return 0, false
	}
	kind, precise := problemOf(resp)
	if 0 < precise && precise < after {
		after = precise
	}
	return after, kind != ""
}

// problemOf returns which of perkey's problems a response is, "" if none, and its retry_after_ms.
func problemOf(resp *http.Response) (kind string, after time.Duration) {
	var doc struct {
		Type       string `json:"type"`
		RetryAfter int32  `json:"retry_after_ms"`
	}
	if ok, _ := decode(resp, "application/problem+json", &doc); !ok || !strings.HasPrefix(doc.Type, problems) {
		return "", 0
	}
	return strings.TrimPrefix(doc.Type, problems), time.Duration(doc.RetryAfter) * time.Millisecond
}

// cut reports whether a refusal or a receipt was cut short: the connection was lost in the midst of it.
func cut(resp *http.Response) bool {
	mediaType := "application/problem+json"
	switch resp.StatusCode {
	case http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable:
	case http.StatusAccepted:
		if mediaType = "application/json"; resp.Header.Get("Location") == "" {
			return false
		}
	default:
		return false
	}
	_, err := document(resp, mediaType)
	return err != nil
}

// document reads the beginning of a response of the media type, and leaves the response as it was. It is empty if that is of
// another type.
func document(resp *http.Response, mediaType string) (content []byte, err error) {
	if got, _, bad := mime.ParseMediaType(resp.Header.Get("Content-Type")); bad == nil && got == mediaType {
		content, err = io.ReadAll(io.LimitReader(resp.Body, maxDocument))
		whole := &body{io.MultiReader(bytes.NewReader(content), resp.Body), resp.Body, func() {}}
		if b, ok := resp.Body.(*body); ok {
			whole.cancel = b.cancel
		}
		resp.Body = whole
	}
	return content, err
}

// decode reports whether a response is JSON of the media type, and reads it. The response stays as it was. The error is that of
// reading its body.
func decode(resp *http.Response, mediaType string, into any) (bool, error) {
	content, err := document(resp, mediaType)
	return err == nil && json.Unmarshal(content, into) == nil, err
}

// retryAfter reads the header Retry-After: seconds, or a date, which is compared with that of the response and may have passed.
func retryAfter(h http.Header) (time.Duration, bool) {
	value := h.Get("Retry-After")
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return at.Sub(now), true
}
