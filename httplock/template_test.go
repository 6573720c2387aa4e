package httplock_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestTemplatesMakeKeys(t *testing.T) {
	for text, want := range map[string]string{
		"order:{param.id}":                           "order:a:b|c%",
		"{param.id}":                                 "a:b|c%",
		"o:{param.id}:end":                           "o:a:b|c%:end",
		"{header.X-Tenant}:{query.q}":                "7:s%3A|",
		"{header.x-tenant}|{query.q}":                "7|s:%7C",
		"{query.q}, {param.id} -> {header.X-Tenant}": "s:|, a:b|c%25 -> 7",
		"{json.user.id}":                             "42",
		"{json.user.id}/{json.name}":                 "42/Zoë%2F",
		"{ctx.user}@{method}":                        "ann@POST",
		"{route}#{param.id}":                         "/o/{id}#a:b|c%25",
		"{{{param.id}}}":                             "{a:b|c%}",
		"{{param.id}}":                               "{param.id}",
		"report":                                     "report",
		"mail:{json.name|sha256}":                    "mail:85081710ae7272f6805c6a9d4f2d123baff7f43e641c11af353fc26ccec84962",
		"{json.user.id|int}":                         "42",
		"u:{header.X-User|uuid}|{header.X-No|int}":   "u:f81d4fae-7dec-11d0-a765-00a0c91e6bf6|42",
		"{json.name|sha256}:{header.X-Tenant}":       "85081710ae7272f6805c6a9d4f2d123baff7f43e641c11af353fc26ccec84962:7",
	} {
		t.Run(text, func(t *testing.T) {
			key, err := httplock.Template(text, httplock.TemplateValue("user", userID))
			require.NoError(t, err)
			r := testbed.Request(t, http.MethodPost, "/o/a:b%7Cc%25?q=s:%7C", `{"user":{"id":4.2e1},"name":"Zoë/"}`)
			r.Header.Set("X-Tenant", "7")
			r.Header.Set("X-User", "F81D4FAE7DEC11D0A76500A0C91E6BF6")
			r.Header.Set("X-No", "+0042")
			got, err := keyUnder(t, key, r.WithContext(context.WithValue(r.Context(), userKey{}, "ann")))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestTemplatesAgreeWithTheConstructors(t *testing.T) {
	for text, key := range map[string]httplock.KeyFunc{
		"order:{param.id}":            httplock.Param("order:", "id"),
		"q:{query.q}":                 httplock.Query("q:", "q"),
		"t:{header.X-T}|o:{param.id}": httplock.Join(httplock.Header("t:", "X-T"), httplock.Param("o:", "id")),
	} {
		template, err := httplock.Template(text)
		require.NoError(t, err)
		r := testbed.Request(t, http.MethodPost, "/o/a%7Cb%25?q=%25%7C", "")
		r.Header.Set("X-T", "%|:")
		got, err := keyUnder(t, template, r)
		require.NoError(t, err)
		want, err := keyUnder(t, key, r)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
}

func TestTemplatesSayWhatTheyRead(t *testing.T) {
	template, err := httplock.ParseTemplate("{param.id}:{header.x-b}:{param.a}:{header.X-B}:{param.id}:{header.X-A}:{query.z}")
	require.NoError(t, err)
	require.Equal(t, []string{"id", "a"}, template.Params())
	require.Equal(t, []string{"X-B", "X-A"}, template.Headers())
	require.False(t, template.Fixed())
	slices.Sort(template.Params())
	require.Equal(t, []string{"id", "a"}, template.Params(), "what is returned is the caller's")
	require.Equal(t, "{param.id}:{header.x-b}:{param.a}:{header.X-B}:{param.id}:{header.X-A}:{query.z}", template.String())
}

func TestTemplatesThatAreWrong(t *testing.T) {
	type mistake struct {
		column  int
		problem string
	}
	for text, want := range map[string][]mistake{
		"":                          {{1, "it is empty"}},
		"order:{param.id":           {{7, "a { without its }"}},
		"order:{param.{id}":         {{7, "a { without its }"}, {15, "unknown value {id}"}},
		"order:}":                   {{7, "a } without its {"}},
		"o:{idempotency_key}":       {{4, "stands alone"}},
		"{idempotency_key|sha256}":  {{2, "stands alone"}},
		"{idempotency_key.a}":       {{2, "{idempotency_key.a} has no name: want {idempotency_key}"}},
		"o:{}":                      {{4, "unknown value {}: want param.NAME"}},
		"o:{id}":                    {{4, "unknown value {id}: want param.NAME"}},
		"o:{ param.id }":            {{4, "unknown value { param.id }"}},
		"o:{cookie.id}":             {{4, "unknown value {cookie.id}"}},
		"o:{param}":                 {{4, "want {param.NAME}"}},
		"o:{param.}":                {{4, "want {param.NAME}"}},
		"o:{method.x}":              {{4, "want {method}"}},
		"é→{header.Authorization}":  {{4, "the header Authorization carries credentials"}},
		"{header.a b}":              {{2, `"a b" is not a header's name`}},
		"{json.a..b}":               {{2, `the path "a..b" has an empty name`}},
		"{ctx.user}":                {{2, `no value from the context is registered, so there is no "user"`}},
		"{param.id|md5}":            {{10, `unknown modifier "|md5"`}},
		"{param.id|}":               {{10, `unknown modifier "|"`}},
		"{param.a}{param.b}":        {{10, "two values side by side"}},
		"{param.a}%{param.b}":       {{10, "% right behind a value"}},
		"a\nb":                      {{2, "control byte 0x0a"}},
		strings.Repeat("x", 513):    {{1, "its text has 513 bytes"}},
		"{foo.x}:{param.}}{json.a.": {{2, "unknown value"}, {10, "want {param.NAME}"}, {17, "a } without"}, {18, "a { without"}},
	} {
		t.Run(text, func(t *testing.T) {
			template, err := httplock.ParseTemplate(text)
			require.Nil(t, template)
			require.ErrorIs(t, err, core.ErrInvalidOption)
			joined, is := err.(interface{ Unwrap() []error })
			require.True(t, is)
			all := joined.Unwrap()
			require.Len(t, all, len(want), "%v", err)
			for i, err := range all {
				var mistake *httplock.TemplateError
				require.ErrorAs(t, err, &mistake)
				require.Equal(t, want[i].column, mistake.Column, "%v", err)
				require.Contains(t, mistake.Problem, want[i].problem)
				require.NotContains(t, mistake.Problem, "httplock:")
				require.Contains(t, err.Error(), mistake.Problem)
			}
			_, err = httplock.Template(text)
			require.ErrorIs(t, err, core.ErrInvalidOption)
		})
	}
	none := func(context.Context) (string, bool) { return "", false }
	_, err := httplock.Template("{ctx.role}", httplock.TemplateValue("user", none), httplock.TemplateValue("group", none))
	require.ErrorContains(t, err, `no value "role" from the context is registered: there are group, user`)
	for name, opts := range map[string][]httplock.TemplateOption{
		"nil":      {nil},
		"no name":  {httplock.TemplateValue("", none)},
		"bad name": {httplock.TemplateValue("a}", none)},
		"no func":  {httplock.TemplateValue("a", nil)},
		"twice":    {httplock.TemplateValue("a", none), httplock.TemplateValue("a", none)},
	} {
		_, err := httplock.Template("x", opts...)
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
	}
	_, err = (*httplock.KeyTemplate)(nil).Key(testbed.Request(t, http.MethodPost, "/", ""))
	require.ErrorIs(t, err, core.ErrInvalidOption, "as ParseTemplate returns it with an error")
	_, err = new(httplock.KeyTemplate).Key(testbed.Request(t, http.MethodPost, "/", ""))
	require.ErrorIs(t, err, core.ErrInvalidOption)
}

func TestTemplatesWithoutTheirValues(t *testing.T) {
	for text, ours := range map[string]bool{
		"{query.q}": false, "{header.X}": false, "{json.a}": false, "{ctx.user}": false, "{param.uid}": true, "x{query.q|sha256}": false,
		"{param.uid|int}": true, "{query.q|int}": false,
	} {
		key, err := httplock.Template(text, httplock.TemplateValue("user", userID))
		require.NoError(t, err)
		_, err = keyUnder(t, key, testbed.Request(t, http.MethodPost, "/o/1", "{}"))
		require.Error(t, err)
		if ours {
			require.ErrorIs(t, err, core.ErrInvalidOption, text)
		} else {
			require.ErrorContains(t, err, "no usable key in the request", text)
		}
	}
	for _, text := range []string{"{query.q|int}", "{query.q|uuid}", "{method|int}"} {
		key, err := httplock.Template(text)
		require.NoError(t, err)
		_, err = key(testbed.Request(t, http.MethodPost, "/?q="+testbed.Secret, ""))
		require.ErrorIs(t, err, core.ErrInvalidKey, text)
		require.NotContains(t, err.Error(), testbed.Secret)
	}
	key, err := httplock.Template("{route}")
	require.NoError(t, err)
	_, err = key(testbed.Request(t, http.MethodPost, "/", ""))
	require.ErrorContains(t, err, "was not matched by a route")
}

func FuzzTemplateValuesNeverRunTogether(f *testing.F) {
	f.Add(":", "a:b", "c", "a", "b:c")
	f.Add("7C", "%", "7C7C", "%7C", "7C")
	f.Add("2", "2", "x", "", "x")
	f.Add("→", "a→", "b", "a", "→b")
	f.Fuzz(func(t *testing.T, between, a, b, c, d string) {
		text := "{header.A}" + strings.NewReplacer("{", "{{", "}", "}}").Replace(between) + "{header.B}"
		template, err := httplock.ParseTemplate(text)
		if err != nil {
			return
		}
		key := func(a, b string) string {
			k, err := template.Key(&http.Request{Header: http.Header{"A": {a}, "B": {b}}})
			if err != nil {
				return ""
			}
			return k
		}
		if first, second := key(a, b), key(c, d); first != "" && second != "" {
			require.Equal(t, a == c && b == d, first == second, "%q %q", first, second)
		}
	})
}
