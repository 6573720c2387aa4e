package httplock

import (
	"fmt"
	"net/http"

	"github.com/perkey-go/perkey/internal/keytext"
)

// MaxJSONBody is the length in bytes of the longest body that JSONField reads.
const MaxJSONBody = DefaultMaxBody

// JSONField takes the key from a field of a JSON body, as Param does from the path:
// JSONField("user:", "user.id") makes "user:42" of {"user": {"id": 42}}. A dot goes into
// an object; elements of arrays, and names with a dot in them, cannot be reached. The
// handler still sees the whole body.
//
// The value is a string, or a whole number of any size, which makes the same key however
// it is written: 42, 42.0, 4.2e1 and the string "42" do. Anything else is refused with
// 400: another type, an empty string, a missing field, a body that is not one JSON value.
// So is a body that has the field twice, also in another case ("ID" beside "id"), since
// the handler might take the other one: names are compared exactly, and Go's decoder
// finds them in any case.
//
// The body is read into memory before the key is asked for. One of more than MaxJSONBody
// is refused with 413. A compressed body is not JSON here.
func JSONField(prefix, path string) KeyFunc {
	names, err := jsonPath(path)
	if err != nil {
		return failing(err)
	}
	return from(prefix, "JSON field", path, func(r *http.Request) (string, error) {
		body := bodyOf(r)
		content, err := body.all(MaxJSONBody)
		if r.Body != nil {
			r.Body = body.again()
		}
		if err != nil {
			return "", err
		}
		v, err := keytext.Field(content, names)
		if err != nil {
			return "", BadKey(fmt.Errorf("JSON field %q: %w", path, err))
		}
		return v, nil
	})
}

func jsonPath(path string) ([]string, error) {
	names, err := keytext.Path(path)
	if err != nil {
		return nil, invalid("JSONField: %v", err)
	}
	return names, nil
}
