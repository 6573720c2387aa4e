package delayqueue

import (
	"encoding/json"
	"testing"

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

const goodMessage = `["id", "k", "name", "payload", 1, 2, 3, 4, 5, "alice", 6, 1, 7, 0]`

func FuzzReadMessage(f *testing.F) {
	for _, seed := range []string{
		goodMessage, `[]`, `null`, `"junk"`, `[null]`, `[[], {}, true]`,
		`["id", "k", "name", "payload", "1", 2, 3, 4, 5, "alice", 6, 1, 7, 0]`, `["id", null, "name", "payload", 1, 2, 3, 4, 5, "alice", 6, 1, 7, 0]`,
		`["id", "k", "name", "payload", 1e300, -1e300, 3, 4, 5, "alice", 6, 1, 7, 0]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		reply, ok := replyOf(text)
		if !ok {
			return
		}
		m, _, ok := readMessage(reply)
		if !ok {
			return
		}
		fields := reply.([]any)
		require.Equal(t, fields[0], m.ID)
		require.Equal(t, fields[1], m.Key)
		require.Equal(t, fields[3], string(m.Payload))
		require.EqualValues(t, fields[4], m.Attempt)
		require.EqualValues(t, fields[6], m.Losses)
	})
}

func FuzzReadSettled(f *testing.F) {
	for _, seed := range []string{
		`[1]`, `[2]`, `[0]`, `[-1, "why"]`, `[-1]`, `[1, ` + goodMessage + `]`, `[0, ` + goodMessage + `]`, `[1, "junk"]`, `[]`, `null`, `["1", 1]`,
		`[null, null]`, `[[], []]`, `[7, 7]`, `[1, null]`, `[-1, null]`, `[{}, 1]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		reply, ok := replyOf(text)
		if !ok {
			return
		}
		s, err := readSettled(reply)
		if err != nil {
			require.False(t, s.held && s.next != nil, "a message that nobody will run")
			return
		}
		fields := reply.([]any)
		require.Equal(t, fields[0] == int64(1) || fields[0] == int64(2), s.held, "%v", reply)
		require.Equal(t, len(fields) > 1 && fields[1] != nil, s.next != nil)
	})
}
