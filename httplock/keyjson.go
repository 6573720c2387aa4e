package httplock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/perkey-go/perkey/core"
)

// MaxJSONBody is the length in bytes of the longest body that JSONField reads.
const MaxJSONBody = DefaultMaxBody

// maxJSONDepth is how deep JSONField looks.
const maxJSONDepth = 16

// JSONField takes the key from a field of a JSON body, as Param does from the path:
// JSONField("user:", "user.id") makes "user:42" of {"user": {"id": 42}}. A dot goes
// into an object; arrays have no names in them, and a name with a dot in it cannot be
// said. The handler still sees the whole body.
//
// The value is a string, or a whole number of any size, which makes the same key
// however it is written: 42, 42.0, 4.2e1 and the string "42" do. Anything else is
// refused with 400: another type, an empty string, a missing field, a body that is
// not one JSON value. So is a body that says it twice, also in another case ("ID"
// beside "id"), since the handler might take the other one: names are compared
// exactly, and Go's decoder finds them in any case.
//
// The body is read into memory before the key is asked for. One of more than
// MaxJSONBody is refused with 413. One that is compressed is not JSON here.
func JSONField(prefix, path string) KeyFunc {
	names, err := jsonPath(path)
	if err != nil {
		return failing(err)
	}
	return from(prefix, "JSON field", path, func(r *http.Request) (string, error) {
		body := newBody(r, MaxJSONBody)
		content, err := body.all()
		if r.Body != nil {
			r.Body = body.reader()
		}
		if err != nil {
			return "", err
		}
		v, err := jsonField(content, names)
		if err != nil {
			return "", BadKey(fmt.Errorf("JSON field %q: %w", path, err))
		}
		return v, nil
	})
}

func jsonPath(path string) ([]string, error) {
	names := strings.Split(path, ".")
	switch {
	case slices.Contains(names, ""):
		return nil, invalid("JSONField: the path %q has an empty name in it", path)
	case len(names) > maxJSONDepth:
		return nil, invalid("JSONField: the path %q is deeper than %d", path, maxJSONDepth)
	}
	return names, nil
}

// jsonField returns the value at a path of names, as text. Its errors do not repeat
// what the body says.
func jsonField(content []byte, names []string) (string, error) {
	if !json.Valid(content) {
		return "", errors.New("the body is not a JSON value")
	}
	value := json.RawMessage(content)
	for _, name := range names {
		var err error
		if value, err = member(value, name); err != nil || value == nil {
			return "", err
		}
	}
	switch value[0] {
	case '"':
		var s string
		err := json.Unmarshal(value, &s)
		return s, err
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return wholeNumber(string(value))
	}
	return "", errors.New("neither a string nor a number")
}

// member returns the value of an object's field, or nil if there is none.
func member(object json.RawMessage, name string) (value json.RawMessage, err error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("it would be in an object, and there is none")
	}
	seen := false
	for decoder.More() {
		var v json.RawMessage
		token, err := decoder.Token()
		if err == nil {
			err = decoder.Decode(&v)
		}
		if err != nil {
			return nil, err
		}
		field, _ := token.(string)
		if !strings.EqualFold(field, name) {
			continue
		}
		if seen {
			return nil, errors.New("the body has it twice")
		}
		seen = true
		if field == name {
			value = v
		}
	}
	return value, nil
}

// wholeNumber returns the digits of a JSON number that is whole.
func wholeNumber(number string) (string, error) {
	digits, negative := strings.CutPrefix(number, "-")
	exponent := 0
	if i := strings.IndexAny(digits, "eE"); i >= 0 {
		var err error
		// A longer one than an int holds is an error, and no key.
		if exponent, err = strconv.Atoi(digits[i+1:]); err != nil {
			return "", errors.New("a number that is too large")
		}
		digits = digits[:i]
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	exponent -= len(fraction)
	for exponent < 0 && strings.HasSuffix(digits, "0") {
		digits = digits[:len(digits)-1]
		exponent++
	}
	switch {
	case digits == "":
		return "0", nil
	case exponent < 0:
		return "", errors.New("a number that is not whole")
	case exponent > core.MaxKeyLen:
		return "", errors.New("a number that is too large")
	}
	digits += strings.Repeat("0", exponent)
	if negative {
		digits = "-" + digits
	}
	return digits, nil
}
