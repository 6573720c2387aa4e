package store

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// replyOf makes of JSON what go-redis makes of a reply: strings, integers, nil, lists.
func replyOf(text []byte) (any, bool) {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return nil, false
	}
	var convert func(v any) any
	convert = func(v any) any {
		switch v := v.(type) {
		case float64:
			return int64(v)
		case []any:
			for i := range v {
				v[i] = convert(v[i])
			}
		}
		return v
	}
	return convert(v), true
}

const goodMessage = `["id k", "1--123456789012345612345678901231234567890123001004005knamealicepayload", "ratoken1 2 3 0 token cause", 1, 0, ""]`

func FuzzReadMessage(f *testing.F) {
	for _, seed := range []string{
		goodMessage, `[]`, `null`, `"junk"`, `[null]`, `[[], {}, true]`,
		`["id k", "1-b123456789012345612345678901231234567890123001004005knamealice", "r------1 2 3 0 token ", 1, 1, "payload"]`,
		`["id k", "1--123456789012345612345678901231234567890123999004005knamealicepayload", "r------1 2 3 0 token ", 1, 0, ""]`,
		`["id", null, "r------1 2 3 0 token ", 1, 0, ""]`, `["id", "1", "1 2 3", 1, 0, ""]`, `["id", "1--1234567890123456-234567890123-234567890123-01004005", "r-------1 2 3 0  ", 1e300, -1e300, ""]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		reply, ok := replyOf(text)
		if !ok {
			return
		}
		m, ok := readMessage(reply, time.Now())
		if !ok {
			return
		}
		fields := reply.([]any)
		id, key, _ := strings.Cut(fields[0].(string), " ")
		require.Equal(t, []string{id, key}, []string{m.ID, m.Key})
		require.Equal(t, fields[2], m.state)
		require.GreaterOrEqual(t, m.Attempts, 0)
		if record := fields[1].(string); m.Damage == "" && !m.long {
			require.Equal(t, record[recordHeader:], m.Key+m.Name+m.Principal+string(m.Payload))
		}
	})
}

func FuzzReadEnding(f *testing.F) {
	for _, seed := range []string{
		"", "d", "d0123456789atoken-1 2 3 4 5 6 1 4 5 knamealicecause", "x0123456789atoken-1 2 3 4 5 6 1 4 500 knamealicecause",
		"effffffffff-------1 2 3 4 5 6 9223372036854775 9223372036854775 500 k", "c-ffffffffff------0 0 0 zzzzzzzzzzz yyyyyyyyyyy 0 0 0 0 ",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, ok := ReadEnding("id", text)
		require.Equal(t, ok, e.State != None)
		if ok {
			require.True(t, strings.HasSuffix(text, e.Key+e.Name+e.Principal+e.Cause))
		}
	})
}

func FuzzReadSettled(f *testing.F) {
	for _, seed := range []string{
		goodMessage, `[1]`, `[2]`, `[0]`, `[-1]`, `[1, ` + goodMessage + `]`, `[0, ` + goodMessage + `]`, `[1, "junk"]`, `[]`, `null`, `["1", 1]`,
		`[null, null]`, `[[], []]`, `[7, 7]`, `[1, null]`, `[-1, null]`, `[{}, 1]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		reply, ok := replyOf(text)
		if !ok {
			return
		}
		var s Settlement
		if err := s.read(reply, time.Now()); err != nil {
			require.False(t, s.Held && s.Claimed != nil, "a message that nobody will run")
			return
		}
		fields := reply.([]any)
		if len(fields) == messageFields {
			require.True(t, s.Held && s.Claimed != nil, "%v", reply)
			return
		}
		require.Equal(t, fields[0] == int64(1), s.Held, "%v", reply)
		require.Equal(t, len(fields) > 1 && fields[1] != nil, s.Claimed != nil)
	})
}
