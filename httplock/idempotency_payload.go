package httplock

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/internal/ident"
)

// IdempotencyPayload sets what is compared with the first request under an Idempotency-Key: the
// bytes that f returns. It is for bodies of which a part is new each time, such as a timestamp.
// Requests for which f returns the same bytes are one request, if method, target and the lock's key
// are the same too. f gets the whole body, which it must not change; r has no body to read, and for
// a replay only the headers that were stored. An error of f refuses the request: with 400 if it
// wraps [BadKey]'s, and otherwise with 500. f must be safe for concurrent use.
//
// Default: Content-Type, Content-Encoding and body, as the package documentation describes.
func IdempotencyPayload(f func(r *http.Request, body []byte) ([]byte, error)) IdempotencyOption {
	return func(o *idempotencyRules) error {
		if f == nil {
			return invalid("IdempotencyPayload(nil)")
		}
		o.payload = f
		return nil
	}
}

// compared is what of a request's body, and of what describes it, is compared.
func (o *idempotentRequest) compared(body []byte) ([]byte, error) {
	if f := o.m.idempotency.payload; f != nil {
		r := *o.x.Request
		r.Body = http.NoBody
		chosen, err := f(&r, body)
		if err != nil {
			return nil, fmt.Errorf("httplock: the function of IdempotencyPayload failed: %w", err)
		}
		return chosen, nil
	}
	h := storedHeaders(o.x.Request, described) // as a replay has them
	kind, encoding := h.Get("Content-Type"), h.Get("Content-Encoding")
	mediaType, params, ok := parseMediaType(kind)
	if !ok {
		return []byte(ident.Hash([]byte("raw"), []byte(kind), []byte(encoding), body)), nil
	}
	if strings.HasPrefix(mediaType, "multipart/") && encoding == "" {
		if parts, ok := hashOfParts(body, params["boundary"]); ok {
			delete(params, "boundary")
			return []byte(ident.Hash([]byte("parts"), []byte(mime.FormatMediaType(mediaType, params)), parts)), nil
		}
	}
	return []byte(ident.Hash([]byte("body"), []byte(mime.FormatMediaType(mediaType, params)), []byte(encoding), body)), nil
}

// described are the headers that say what a body means.
var described = map[string]bool{"Content-Encoding": true, "Content-Type": true}

// parseMediaType reads a media type of RFC 9110, section 8.3.1, with what makes no difference written in one way: case, but
// of parameters' values, and the charset that a type has anyway. mime.FormatMediaType sorts and quotes the rest.
func parseMediaType(kind string) (mediaType string, params map[string]string, ok bool) {
	mediaType, params, err := mime.ParseMediaType(kind)
	if err != nil || mime.FormatMediaType(mediaType, params) == "" {
		return "", nil, false
	}
	if charset, has := params["charset"]; has {
		params["charset"] = strings.ToLower(charset)
		isUTF8 := mediaType == "application/json" || strings.HasSuffix(mediaType, "+json") || mediaType == "application/x-www-form-urlencoded"
		if isUTF8 && params["charset"] == "utf-8" {
			delete(params, "charset")
		}
	}
	return mediaType, params, true
}

// hashOfParts is a hash of a multipart body, whatever its boundary: of the headers and the content of each part, in order. A body
// that does not end as it should has none.
func hashOfParts(body []byte, boundary string) (sum []byte, ok bool) {
	// The reader takes a body that breaks off before a part's header for one that has ended.
	if end := []byte("--" + boundary + "--"); boundary == "" || !bytes.HasPrefix(body, end) && !bytes.Contains(body, append([]byte("\n"), end...)) {
		return nil, false
	}
	all, one, buffer := sha256.New(), sha256.New(), make([]byte, 4096)
	for r := multipart.NewReader(bytes.NewReader(body), boundary); ; {
		part, err := r.NextRawPart()
		if err == io.EOF { // wrapped: the end is missing
			return all.Sum(nil), true
		}
		if err != nil {
			return nil, false
		}
		var header [][]byte
		for _, name := range slices.Sorted(maps.Keys(part.Header)) {
			for _, value := range part.Header[name] {
				header = append(header, []byte(name), []byte(value))
			}
		}
		one.Reset()
		if _, err := io.CopyBuffer(one, part, buffer); err != nil {
			return nil, false
		}
		_, _ = io.WriteString(all, ident.Hash(append(header, one.Sum(nil))...)) // never fails
	}
}
