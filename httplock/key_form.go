package httplock

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
)

// Form takes the key from a field of a form in the body, as Param does from the path: Form("order:", "order") makes
// "order:42" of order=42. The form is that of a POST, PUT or PATCH, of application/x-www-form-urlencoded or
// multipart/form-data. The handler still sees the whole body.
//
// A request without the field, or with an empty one, is refused with 400. So is one with several, or whose query has the
// field too, since the handler might take another one of them, and one whose form is malformed.
//
// The body is read into memory before the key is asked for, as by [JSONField], and one of more than MaxJSONBody is
// refused with 413. A form that middleware in front has parsed is used as it is.
func Form(prefix, name string) KeyFunc {
	return from(prefix, "form field", name, func(r *http.Request) (string, error) {
		form, err := postForm(r)
		if err != nil {
			return "", err
		}
		switch values := form[name]; {
		case len(values) > 1:
			return "", BadKey(fmt.Errorf("form field %q: given %d times", name, len(values)))
		case len(values) == 0:
			return "", nil
		case r.URL.Query().Has(name):
			return "", BadKey(fmt.Errorf("form field %q: the query has it too", name))
		default:
			return values[0], nil
		}
	})
}

// postForm returns the form in the body, which it leaves there.
func postForm(r *http.Request) (url.Values, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	multipart := kind == "multipart/form-data"
	switch {
	case err != nil:
		return nil, BadKey(fmt.Errorf("the body is not a form: %w", err))
	case multipart && r.MultipartForm != nil, !multipart && r.PostForm != nil:
		return r.PostForm, nil
	}
	body := bodyOf(r)
	content, err := body.all(MaxJSONBody)
	if r.Body != nil {
		r.Body = body.again()
	}
	if err != nil {
		return nil, err
	}
	parsed := &http.Request{Method: r.Method, URL: &url.URL{}, Header: r.Header, Body: io.NopCloser(bytes.NewReader(content))}
	if err = parsed.ParseForm(); err == nil && multipart {
		err = parsed.ParseMultipartForm(MaxJSONBody) // no file goes to the disk
	}
	if err != nil {
		return nil, BadKey(errMalformedForm)
	}
	return parsed.PostForm, nil
}
