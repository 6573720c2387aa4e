package httplock_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// TestJSONField_MakesOneKeyOfOneValue is long since it is a table.
func TestJSONField_MakesOneKeyOfOneValue(t *testing.T) {
	const bad = "" // 400
	for name, test := range map[string]struct{ path, body, want string }{
		"string":                     {"id", `{"id":"a b"}`, "k:a b"},
		"string, escaped":            {"id", `{"id":"\u0061\/\u00e9"}`, "k:a/é"},
		"string, looks like another": {"id", `{"id":"042"}`, "k:042"},
		"nested":                     {"user.id", ` {"id":1, "user" : {"x":[{"id":2}], "id" : 3 } } `, "k:3"},
		"in an array":                {"user.id", `{"user":[{"id":3}]}`, bad},
		"in a string":                {"user.id", `{"user":"id"}`, bad},
		"in null":                    {"user.id", `{"user":null}`, bad},
		"integer":                    {"id", `{"id":42}`, "k:42"},
		"integer as a fraction":      {"id", `{"id":42.0}`, "k:42"},
		"with an exponent":           {"id", `{"id":4.2e1}`, "k:42"},
		"with a negative exponent":   {"id", `{"id":4200E-2}`, "k:42"},
		"with trailing zeros":        {"id", `{"id":0.4200e+2}`, "k:42"},
		"hundred":                    {"id", `{"id":1e2}`, "k:100"},
		"zero":                       {"id", `{"id":0}`, "k:0"},
		"negative zero":              {"id", `{"id":-0.0e5}`, "k:0"},
		"negative":                   {"id", `{"id":-7}`, "k:-7"},
		"more digits than a float":   {"id", `{"id":9007199254740993}`, "k:9007199254740993"},
		"fraction":                   {"id", `{"id":4.25}`, bad},
		"huge exponent":              {"id", `{"id":1e1000000000}`, bad},
		"exponent past an int":       {"id", `{"id":1e99999999999999999999}`, bad},
		"tiny exponent":              {"id", `{"id":1e-9223372036854775808}`, bad},
		"bool":                       {"id", `{"id":true}`, bad},
		"null":                       {"id", `{"id":null}`, bad},
		"object":                     {"id", `{"id":{}}`, bad},
		"array":                      {"id", `{"id":["a"]}`, bad},
		"empty string":               {"id", `{"id":""}`, bad},
		"missing":                    {"id", `{"ids":1}`, bad},
		"twice":                      {"id", `{"id":1,"id":1}`, bad},
		"twice, escaped":             {"id", `{"id":1,"\u0069d":2}`, bad},
		"twice, in another case":     {"id", `{"id":1,"Id":2}`, bad},
		"twice, folded":              {"kind", `{"kind":1,"` + "\u212aind" + `":2}`, bad}, // the Kelvin sign, which Go's decoder takes for a k
		"only in another case":       {"id", `{"ID":1}`, bad},
		"the object twice":           {"user.id", `{"user":{"id":1},"user":{"id":2}}`, bad},
		"twice elsewhere":            {"id", `{"id":1,"x":{"id":2},"y":{"a":1,"a":2}}`, "k:1"},
		"not an object":              {"id", `[{"id":1}]`, bad},
		"not JSON":                   {"id", `id=1`, bad},
		"cut off":                    {"id", `{"id":1`, bad},
		"something behind":           {"id", `{"id":1}{"id":2}`, bad},
		"nothing":                    {"id", ``, bad},
		"deep":                       {"id", `{"id":1,"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, bad},
	} {
		t.Run(name, func(t *testing.T) {
			r := testbed.Request(t, http.MethodPost, "/", test.body)
			key, err := httplock.JSONField("k:", test.path)(r)
			require.Equal(t, test.want, key)
			rest, readErr := io.ReadAll(r.Body)
			require.NoError(t, readErr)
			require.Equal(t, test.body, string(rest), "the whole body is left")
			require.NoError(t, r.Body.Close())
			if test.want != bad {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			require.NotErrorIs(t, err, core.ErrInvalidOption)
			require.ErrorContains(t, err, "no usable key in the request")
		})
	}
}

func TestJSONField_PathsThatCannotBe(t *testing.T) {
	for path, problem := range map[string]string{
		"": "empty", "a.": "empty name", ".a": "empty name", "a..b": "empty name", strings.Repeat("a.", 16) + "a": "deeper than 16",
	} {
		_, err := httplock.JSONField("k:", path)(testbed.Request(t, http.MethodPost, "/", `{"a":1}`))
		require.ErrorIs(t, err, core.ErrInvalidOption, path)
		require.ErrorContains(t, err, problem)
	}
}

// The cap on what waits is another one than that on what a key function reads.
func TestJSONField_OfALargeBody(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	for size, status := range map[int]int{100: http.StatusOK, httplock.MaxJSONBody: http.StatusOK, httplock.MaxJSONBody + 1: http.StatusRequestEntityTooLarge} {
		h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), httplock.JSONField("k:", "id"), httplock.WithMaxBody(10))(sized(t, size))
		for _, length := range []int64{int64(size), -1} {
			body := `{"id":"free","x":"`
			r := testbed.Request(t, http.MethodPost, "/", body+strings.Repeat("y", size-len(body)-2)+`"}`)
			r.ContentLength = length
			require.Equal(t, status, testbed.Do(h, r).Status, size)
		}
	}
}

func TestKey_BodiesThatCannotBeReadForTheKey(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), httplock.JSONField("k:", "id"))(mustNotRun(t))
	r := testbed.Request(t, http.MethodPost, "/", "")
	r.Body = io.NopCloser(iotest.ErrReader(errors.New(testbed.Secret)))
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusBadRequest, "unreadable-body", false)

	r = testbed.Request(t, http.MethodPost, "/", `{"id":"`+strings.Repeat("x", 1000))
	r.Body = http.MaxBytesReader(nil, r.Body, 100)
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusRequestEntityTooLarge, "body-too-large", false)

	r = testbed.Request(t, http.MethodPost, "/", "")
	r.Body = nil
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusBadRequest, "bad-key", false)

	own := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), func(r *http.Request) (string, error) {
		_, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 3))
		return "", err
	})(mustNotRun(t))
	testbed.RequireProblem(t, testbed.Call(t, own, http.MethodPost, "/", "long"), http.StatusRequestEntityTooLarge, "body-too-large", false)
}

// Whatever a handler decodes with encoding/json is what the key was made of.
func FuzzJSONFieldAgreesWithTheDecoder(f *testing.F) {
	for _, body := range []string{`{"id":42}`, `{"id":"x"}`, `{"id":1,"ID":2}`, `{"a":{"id":1},"id":-0}`, `{"id":1e2}`, `{"id":"\ud800"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		key, err := httplock.JSONField("", "id")(testbed.Request(t, http.MethodPost, "/", string(body)))
		if err != nil {
			return
		}
		var text struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(body, &text) == nil {
			require.Equal(t, text.ID, key)
			return
		}
		var number struct {
			ID json.Number `json:"id"`
		}
		require.NoError(t, json.Unmarshal(body, &number))
		if n, err := number.ID.Int64(); err == nil {
			got, err := json.Number(key).Int64()
			require.NoError(t, err)
			require.Equal(t, n, got)
		}
	})
}
