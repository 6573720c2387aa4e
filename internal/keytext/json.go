package keytext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxDepth is the longest path.
	maxDepth = 16
	// maxZeros is how many zeros a number's exponent may add: no key is longer.
	maxZeros = 512
)

// Path splits a path into the names between its dots.
func Path(path string) ([]string, error) {
	names := strings.Split(path, ".")
	switch {
	case slices.Contains(names, ""):
		return nil, fmt.Errorf("the path %q has an empty name in it", path)
	case len(names) > maxDepth:
		return nil, fmt.Errorf("the path %q is deeper than %d", path, maxDepth)
	}
	return names, nil
}

// Field returns the value at a path of names in a JSON value, as text. It is empty if there is
// none. JSONField of package httplock documents the rules. Its errors do not repeat the content.
func Field(content []byte, names []string) (string, error) {
	if !json.Valid(content) {
		return "", errors.New("not a JSON value")
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
			return nil, errors.New("given twice")
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
	case exponent > maxZeros:
		return "", errors.New("a number that is too large")
	}
	digits += strings.Repeat("0", exponent)
	if negative {
		digits = "-" + digits
	}
	return digits, nil
}
