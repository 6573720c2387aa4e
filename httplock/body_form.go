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
	"net/url"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/internal/ident"
)

// The kinds of forms that net/http parses.
const (
	urlForm       = "application/x-www-form-urlencoded"
	multipartForm = "multipart/form-data"
)

// formKind is the kind of form that a request's Content-Type names, or empty. Parameters that are malformed do not matter to ParseForm.
func formKind(r *http.Request) (kind, boundary string) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == urlForm || kind == multipartForm && err == nil {
		return kind, params["boundary"]
	}
	return "", ""
}

// wasParsed reports whether somebody has looked for the form in a request's body, of which content is what is there now.
// ParseForm leaves a multipartForm alone, but shows the same as parsing one that fails, which has read its beginning.
func wasParsed(r *http.Request, kind, boundary string, content []byte) bool {
	switch {
	case r.MultipartForm != nil:
		return true
	case kind == multipartForm:
		return r.PostForm != nil && !bytes.HasPrefix(content, []byte("--"+boundary))
	}
	return r.PostForm != nil && (parsesForms(r.Method) || len(r.PostForm) > 0)
}

// hasForm reports whether something was found there.
func hasForm(r *http.Request) bool { return len(r.PostForm) > 0 || hasMultipart(r) }

// hasMultipart also tells a form that was parsed from the one that Request.MultipartReader leaves.
func hasMultipart(r *http.Request) bool {
	return r.MultipartForm != nil && len(r.MultipartForm.Value)+len(r.MultipartForm.File) > 0
}

// parsesForms reports whether ParseForm looks for a form in the body.
func parsesForms(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

var errMalformedForm = errors.New("the form is malformed")

// A form has one canonical form: the values of each field in their order, and its files, whatever the order of the fields and
// however they are written. That of an urlForm is its encoding by net/url; that of a multipartForm is a hash.

// canonicalForm is that of a body. Of an urlForm that is malformed it is that of what can be read, as ParseForm has it, beside
// the error.
func canonicalForm(kind string, content []byte, boundary string) ([]byte, error) {
	if kind == urlForm {
		values, err := url.ParseQuery(string(content))
		return []byte(values.Encode()), err
	}
	if !endsAt(content, boundary) {
		return nil, errMalformedForm
	}
	fields := formFields{}
	for r := multipart.NewReader(bytes.NewReader(content), boundary); ; {
		part, err := r.NextPart()
		if err == io.EOF { // wrapped: the end is missing
			return fields.hash(), nil
		}
		if err != nil {
			return nil, err
		}
		name, file := part.FormName(), part.FileName()
		if name == "" { // parsing drops it
			return nil, errMalformedForm
		}
		if err := fields.add(name, file, part.Header, part); err != nil {
			return nil, err
		}
	}
}

// parsedForm is that of a form that was parsed, whose fields and files have most bytes at the most.
func parsedForm(r *http.Request, kind string, most int64) ([]byte, error) {
	if kind == urlForm {
		content := r.PostForm.Encode()
		switch {
		case content == "":
			return nil, errBodyGone
		case int64(len(content)) > max(most, r.ContentLength)*3: // a byte is three if it is escaped
			return nil, fmt.Errorf("%w: more than %d bytes", errBodyTooLarge, most)
		}
		return []byte(content), nil
	}
	if !hasMultipart(r) {
		return nil, errBodyGone
	}
	fields, size := formFields{}, int64(0)
	for name, values := range r.MultipartForm.Value {
		for _, v := range values {
			size += int64(len(v))
			_ = fields.add(name, "", nil, bytes.NewReader([]byte(v))) // never fails
		}
	}
	for name, files := range r.MultipartForm.File {
		for _, file := range files {
			if size += file.Size; size > most {
				return nil, fmt.Errorf("%w: more than %d bytes", errBodyTooLarge, most)
			}
			if err := fields.addFile(name, file); err != nil {
				return nil, fmt.Errorf("%w: %w", errBodyGone, err)
			}
		}
	}
	if size > most {
		return nil, fmt.Errorf("%w: more than %d bytes", errBodyTooLarge, most)
	}
	return fields.hash(), nil
}

// formFields are the fields and the files of a multipartForm, each with the hash of what it holds.
type formFields map[string][][]byte

// add adds a field, or a file if it has the name of one. What describes a field is dropped when it is parsed.
func (f formFields) add(name, file string, header map[string][]string, content io.Reader) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, content); err != nil {
		return err
	}
	if file == "" {
		f["field "+name] = append(f["field "+name], sum.Sum(nil))
		return nil
	}
	described := [][]byte{[]byte(file), sum.Sum(nil)}
	for _, key := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[key] {
			described = append(described, []byte(key), []byte(value))
		}
	}
	f["file "+name] = append(f["file "+name], []byte(ident.Hash(described...)))
	return nil
}

func (f formFields) addFile(name string, file *multipart.FileHeader) error {
	content, err := file.Open()
	if err != nil {
		return err
	}
	err = f.add(name, file.Filename, file.Header, content)
	_ = content.Close() // it was read
	return err
}

func (f formFields) hash() []byte {
	var all [][]byte
	for _, name := range slices.Sorted(maps.Keys(f)) {
		all = append(all, []byte(name), []byte(ident.Hash(f[name]...)))
	}
	return []byte(ident.Hash(all...))
}

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

// endsAt reports whether a multipart body ends as it should. The reader takes one that breaks off before a part's header for one
// that has ended.
func endsAt(body []byte, boundary string) bool {
	end := []byte("--" + boundary + "--")
	return boundary != "" && (bytes.HasPrefix(body, end) || bytes.Contains(body, append([]byte("\n"), end...)))
}
