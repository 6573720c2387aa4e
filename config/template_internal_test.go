package config

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

type userKey struct{}

var userValue = contextValues{"user": func(ctx context.Context) (string, bool) {
	id, has := ctx.Value(userKey{}).(string)
	return id, has
}}

// template reads one that is right.
func template(t testing.TB, text string) httplock.KeyFunc {
	t.Helper()
	made, problems := parseTemplate(text, userValue)
	require.Empty(t, problems)
	return made.key
}

// keyUnder is a key under a route with a parameter.
func keyUnder(t *testing.T, key httplock.KeyFunc, r *http.Request) (k string, err error) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /o/{id}", func(_ http.ResponseWriter, r *http.Request) { k, err = key(r) })
	require.Equal(t, http.StatusOK, testbed.Do(mux, r).Status)
	return k, err
}

func TestTemplates_MakeKeys(t *testing.T) {
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
			r := testbed.Request(t, http.MethodPost, "/o/a:b%7Cc%25?q=s:%7C", `{"user":{"id":4.2e1},"name":"Zoë/"}`)
			r.Header.Set("X-Tenant", "7")
			r.Header.Set("X-User", "F81D4FAE7DEC11D0A76500A0C91E6BF6")
			r.Header.Set("X-No", "+0042")
			got, err := keyUnder(t, template(t, text), r.WithContext(context.WithValue(r.Context(), userKey{}, "ann")))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestTemplates_AgreeWithTheConstructors(t *testing.T) {
	for text, key := range map[string]httplock.KeyFunc{
		"order:{param.id}":            httplock.Param("order:", "id"),
		"q:{query.q}":                 httplock.Query("q:", "q"),
		"t:{header.X-T}|o:{param.id}": httplock.Join(httplock.Header("t:", "X-T"), httplock.Param("o:", "id")),
	} {
		r := testbed.Request(t, http.MethodPost, "/o/a%7Cb%25?q=%25%7C", "")
		r.Header.Set("X-T", "%|:")
		got, err := keyUnder(t, template(t, text), r)
		require.NoError(t, err)
		want, err := keyUnder(t, key, r)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
}

func TestTemplates_SayWhatTheyRead(t *testing.T) {
	made, problems := parseTemplate("{param.id}:{header.x-b}:{param.a}:{header.X-B}:{param.id}:{header.X-A}:{query.z}:{ctx.v}:{ctx.u}:{ctx.v|sha256}", nil)
	require.Empty(t, problems)
	require.Equal(t, []string{"id", "a"}, made.params)
	require.Equal(t, []string{"X-B", "X-A"}, made.headers)
	require.Equal(t, []string{"v", "u"}, made.values)
	require.False(t, made.fixed())
}

func TestTemplates_ThatAreWrong(t *testing.T) {
	for text, want := range map[string][]string{
		"order:{param.id":           {"character 7: { without }"},
		"order:{param.{id}":         {"character 7: { without }", "character 15: unknown value {id}"},
		"order:}":                   {"character 7: unexpected }"},
		"o:{idempotency_key}":       {"character 4: {idempotency_key} stands alone"},
		"{idempotency_key|sha256}":  {"character 2: {idempotency_key} stands alone"},
		"{idempotency_key.a}":       {"character 2: {idempotency_key.a} takes no name; expected {idempotency_key}"},
		"o:{}":                      {"character 4: unknown value {}; expected param.NAME"},
		"o:{id}":                    {"character 4: unknown value {id}; expected param.NAME"},
		"o:{ param.id }":            {"character 4: unknown value { param.id }"},
		"o:{cookie.id}":             {"character 4: unknown value {cookie.id}"},
		"o:{param}":                 {"character 4: {param} lacks a name; expected {param.NAME}"},
		"o:{param.}":                {"character 4: {param.} lacks a name; expected {param.NAME}"},
		"o:{method.x}":              {"character 4: {method.x} takes no name; expected {method}"},
		"é→{header.Authorization}":  {"character 4: the header Authorization carries credentials"},
		"{header.a b}":              {`character 2: "a b" is not a header's name`},
		"{header.Host}":             {"character 2: the header Host cannot be a key"},
		"{json.a..b}":               {`character 2: the path "a..b" has an empty name`},
		"{param.id|md5}":            {`character 10: unknown modifier "|md5"; expected |int`},
		"{param.id|}":               {`character 10: unknown modifier "|"`},
		"{param.a}{param.b}":        {"character 10: two values side by side"},
		"{param.a}%{param.b}":       {"character 10: % right after a value"},
		"a\nb":                      {"character 2: control byte 0x0a"},
		strings.Repeat("x", 513):    {"character 1: the text has 513 bytes; expected at most 512"},
		strings.Repeat("{", 4097):   {"character 1: the template has 4097 bytes; expected at most 4096"},
		"{foo.x}:{param.}}{json.a.": {"character 2: unknown value", "character 10: {param.} lacks", "character 17: unexpected }", "character 18: { without }"},
	} {
		t.Run(text, func(t *testing.T) {
			made, problems := parseTemplate(text, nil)
			require.Nil(t, made)
			require.Len(t, problems, len(want), "%q", problems)
			for i, problem := range problems {
				require.Contains(t, problem, want[i])
				require.NotContains(t, problem, "httplock:")
			}
		})
	}
}

func TestTemplates_WithoutTheirValues(t *testing.T) {
	for text, ours := range map[string]bool{
		"{query.q}": false, "{header.X}": false, "{json.a}": false, "{ctx.user}": false, "{param.uid}": true, "x{query.q|sha256}": false,
		"{param.uid|int}": true, "{query.q|int}": false, "{ctx.other}": true,
	} {
		_, err := keyUnder(t, template(t, text), testbed.Request(t, http.MethodPost, "/o/1", "{}"))
		require.Error(t, err)
		if ours {
			require.ErrorIs(t, err, core.ErrInvalidOption, text)
		} else {
			require.ErrorContains(t, err, "no usable key in the request", text)
		}
	}
	for _, text := range []string{"{query.q|int}", "{query.q|uuid}", "{method|int}"} {
		_, err := template(t, text)(testbed.Request(t, http.MethodPost, "/?q="+testbed.Secret, ""))
		require.ErrorIs(t, err, core.ErrInvalidKey, text)
		require.NotContains(t, err.Error(), testbed.Secret)
	}
	_, err := template(t, "{route}")(testbed.Request(t, http.MethodPost, "/", ""))
	require.ErrorContains(t, err, "was not matched by a route")
}

func FuzzTemplates_ValuesNeverRunTogether(f *testing.F) {
	f.Add(":", "a:b", "c", "a", "b:c")
	f.Add("7C", "%", "7C7C", "%7C", "7C")
	f.Add("2", "2", "x", "", "x")
	f.Add("→", "a→", "b", "a", "→b")
	f.Fuzz(func(t *testing.T, between, a, b, c, d string) {
		text := "{header.A}" + strings.NewReplacer("{", "{{", "}", "}}").Replace(between) + "{header.B}"
		template, _ := parseTemplate(text, nil)
		if template == nil {
			return
		}
		key := func(a, b string) string {
			k, err := template.key(&http.Request{Header: http.Header{"A": {a}, "B": {b}}})
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
