package httplock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
)

// envelope puts a line of JSON in front of a body. Requests and responses are
// stored so.
func envelope(head any, body []byte) ([]byte, error) {
	line, err := json.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("httplock: encode: %w", err)
	}
	sealed := make([]byte, 0, len(line)+1+len(body))
	sealed = append(sealed, line...)
	sealed = append(sealed, '\n')
	return append(sealed, body...), nil
}

// openEnvelope undoes envelope. A later version, and unknown fields, which may matter, are
// errUnknownForm.
func openEnvelope(sealed []byte, head any, version int) (body []byte, err error) {
	line, body, found := bytes.Cut(sealed, []byte{'\n'})
	if !found {
		return nil, errors.New("no line of JSON in front of the body")
	}
	var stored struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(line, &stored); err == nil && stored.Version > version {
		return nil, fmt.Errorf("%w: version %d, want %d", errUnknownForm, stored.Version, version)
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(head); err != nil {
		if json.Unmarshal(line, head) == nil { // it is about a field
			err = fmt.Errorf("%w: %w", errUnknownForm, err)
		}
		return nil, err
	}
	if len(bytes.TrimSpace(line[decoder.InputOffset():])) > 0 {
		return nil, errors.New("more than one JSON value in its head")
	}
	return body, nil
}

// escapeAll returns a copy of the headers with escaped values, or nil.
func escapeAll(headers http.Header) http.Header {
	var wide http.Header
	for name, values := range headers {
		if wide == nil {
			wide = http.Header{}
		}
		for _, v := range values {
			wide[name] = append(wide[name], escapeLatin1(v))
		}
	}
	return wide
}

// unescapeAll undoes escapeAll in place. It fails for what is no header, and for one
// of those that are never stored.
func unescapeAll(headers http.Header, never map[string]bool) (err error) {
	for name, values := range headers {
		if !isToken(name) || textproto.CanonicalMIMEHeaderKey(name) != name || never[name] {
			return fmt.Errorf("header %q", name)
		}
		for i := range values {
			if values[i], err = unescapeLatin1(values[i]); err != nil || !isFieldValue(values[i]) {
				return fmt.Errorf("value of header %q", name)
			}
		}
	}
	return nil
}

var errNotByte = errors.New("a character that stands for no byte")

// escapeLatin1 turns each byte into the character of that number, which JSON keeps.
// ASCII stays as it is.
func escapeLatin1(s string) string {
	if isASCII(s) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

// unescapeLatin1 undoes escapeLatin1.
func unescapeLatin1(s string) (string, error) {
	if isASCII(s) {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return "", errNotByte
		}
		b = append(b, byte(r))
	}
	return string(b), nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
