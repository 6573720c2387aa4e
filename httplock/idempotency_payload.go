package httplock

import (
	"bytes"
	"crypto/sha256"
	"errors"
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
// are the same too. f gets the whole body, which it must not change; r has the same body to read, and
// for a replay only the headers that were stored. An error of f refuses the request: with 400 if it
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
func (o *idempotentRequest) compared(b *body) (is []byte, err error) {
	r, most := o.x.Request, o.m.body.max
	content, err := b.all(most)
	if f := o.m.idempotency.payload; f != nil {
		if err == nil {
			seen := *r
			seen.Body = io.NopCloser(bytes.NewReader(content))
			if is, err = f(&seen, content); err != nil {
				err = fmt.Errorf("httplock: the function of IdempotencyPayload failed: %w", err)
			}
		}
		return is, err
	}
	h := storedHeaders(r, described) // as a replay has them
	contentType := h.Get("Content-Type")
	kind, boundary := formKind(r)
	switch {
	case errors.Is(err, errBodyGone) && kind != "":
		canonical, err := parsedForm(r, kind, most)
		return hashOfForm(contentType, kind, canonical), err
	case err != nil:
		return nil, err
	}
	coding, _ := b.coding()
	// A urlForm is another one in other words only if both are as long. Else it may be none: clients send JSON as one, whose + is
	// none of a space's. So a form whose client escapes other characters than net/url is not the same if it was read in front.
	if kind != "" && coding == "" {
		if canonical, err := canonicalForm(kind, content, boundary); err == nil && (kind != urlForm || len(canonical) == len(content)) {
			return hashOfForm(contentType, kind, canonical), nil
		}
	}
	return hashOfBody(contentType, coding, content), nil
}

// hashOfBody is a hash of a body, and of what describes it.
func hashOfBody(contentType, coding string, body []byte) []byte {
	mediaType, params, ok := parseMediaType(contentType)
	if !ok {
		return []byte(ident.Hash([]byte("raw"), []byte(contentType), []byte(coding), body))
	}
	if strings.HasPrefix(mediaType, "multipart/") && coding == "" {
		if parts, ok := hashOfParts(body, params["boundary"]); ok {
			delete(params, "boundary")
			return []byte(ident.Hash([]byte("parts"), []byte(mime.FormatMediaType(mediaType, params)), parts))
		}
	}
	return []byte(ident.Hash([]byte("body"), []byte(mime.FormatMediaType(mediaType, params)), []byte(coding), body))
}

// hashOfForm is the same for a form in its canonical form.
func hashOfForm(contentType, kind string, canonical []byte) []byte {
	if kind == urlForm {
		return hashOfBody(contentType, "", canonical)
	}
	mediaType, params, _ := parseMediaType(contentType)
	delete(params, "boundary")
	return []byte(ident.Hash([]byte("form"), []byte(mime.FormatMediaType(mediaType, params)), canonical))
}

// described are the headers that say what a body means.
var described = map[string]bool{"Content-Encoding": true, "Content-Type": true}

// hashOfParts is a hash of a multipart body, whatever its boundary: of the headers and the content of each part, in order. A body
// that does not end as it should has none.
func hashOfParts(body []byte, boundary string) (sum []byte, ok bool) {
	if !endsAt(body, boundary) {
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
