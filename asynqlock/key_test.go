package asynqlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
)

func TestKeys_OfJSONFields(t *testing.T) {
	t.Parallel()
	const bad = "\x00"
	for _, c := range []struct{ path, payload, want string }{
		{"id", `{"id":"a:b"}`, "p:a:b"},
		{"id", `{"id":42}`, "p:42"},
		{"id", `{"id":"42"}`, "p:42"},
		{"user.id", `{"id":1,"user":{"id" : 42 }}`, "p:42"},
		{"id", `{"id":42.0}`, "p:42"},
		{"id", `{"id":1,"id":2}`, bad},
		{"id", `{"id":1.5}`, bad},
		{"id", `{"id":""}`, bad},
		{"id", `{"id":null}`, bad},
		{"id", `{}`, bad},
		{"id", ``, bad},
		{"id", `{"id":1`, bad},
		{"user.id", `{"user":7}`, bad},
	} {
		got, err := asynqlock.JSONField("p:", c.path)(t.Context(), asynq.NewTask(kind, []byte(c.payload)))
		if c.want == bad {
			require.ErrorIs(t, err, asynq.SkipRetry, c.payload)
			require.ErrorContains(t, err, `JSON field "`+c.path+`"`)
			continue
		}
		require.NoError(t, err, c.payload)
		require.Equal(t, c.want, got)
	}
}

func TestKeys_OfOtherParts(t *testing.T) {
	t.Parallel()
	task := asynq.NewTaskWithHeaders("mail", nil, map[string]string{"tenant": "acme", "empty": ""})
	got, err := asynqlock.Header("t:", "tenant")(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "t:acme", got)
	got, err = asynqlock.Type("type:")(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "type:mail", got)
	for _, name := range []string{"empty", "Tenant", "none"} {
		_, err = asynqlock.Join(asynqlock.Type("type:"), asynqlock.Header("t:", name))(t.Context(), task)
		require.ErrorIs(t, err, asynq.SkipRetry, name)
	}
	for name, key := range map[string]asynqlock.KeyFunc{
		"header": asynqlock.Header("t:", ""), "path": asynqlock.JSONField("p:", "a..b"), "no path": asynqlock.JSONField("p:", ""),
		"parts": asynqlock.Join(), "nil part": asynqlock.Join(nil), "nil hash": asynqlock.Hash(nil),
	} {
		_, err = key(t.Context(), asynq.NewTask("mail", []byte(`{"a":{"":{"b":1}}}`)))
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		require.NotErrorIs(t, err, asynq.SkipRetry, name)
	}
}

// A request and a task exclude one another only if they make the same key.
func TestKeys_AreThoseOfRequests(t *testing.T) {
	t.Parallel()
	for _, id := range []string{`42`, `4.20e1`, `"a|b"`, `"` + strings.Repeat("é", 400) + `"`, `"\n"`, `""`, `1.5`} {
		content := `{"order":{"id":` + id + `}}`
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(content))
		r.Header.Set("tenant", "a%|b")
		want, refused := httplock.Hash(httplock.Join(httplock.Header("t:", "tenant"), httplock.JSONField("o:", "order.id")))(r)
		headers := map[string]string{"tenant": "a%|b"}
		key := asynqlock.Hash(asynqlock.Join(asynqlock.Header("t:", "tenant"), asynqlock.JSONField("o:", "order.id")))
		got, err := key(t.Context(), asynq.NewTaskWithHeaders(kind, []byte(content), headers))
		require.Equal(t, refused == nil, err == nil, id)
		require.Equal(t, want, got)
	}
}

func TestKeys_TasksWithoutAUsableOneAreArchivedAtOnce(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		cfg := b.config()
		reported := make(chan error, 10)
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { reported <- err })
		b.serve(t, cfg, b.perKey()(mustNotRun(t)))
		for payload, cause := range map[string]string{
			`{"` + secret:                                       `no usable key in the task: JSON field "user_id"`,
			`{"user":"` + secret + `"}`:                         `is missing or empty`,
			`{"user_id":"` + secret + `\n"}`:                    `control byte`,
			`{"user_id":"` + strings.Repeat(secret, 100) + `"}`: `bytes long`,
		} {
			id := b.enqueue(t, asynq.NewTask(kind, []byte(payload)), asynq.MaxRetry(5))
			require.ErrorIs(t, get(t, reported), asynq.SkipRetry)
			info := b.untilState(t, id, asynq.TaskStateArchived)
			require.Contains(t, info.LastErr, cause)
			require.Zero(t, info.Retried)
			requireNoSecret(t, info.LastErr)
		}
	})
}
