package httplock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
)

func TestRoutePattern_PatternsOfAllFrameworksHaveOneForm(t *testing.T) {
	for pattern, test := range map[string]struct {
		want   string
		params []string
	}{
		"":                               {"", nil},
		"/":                              {"/", nil},
		"/orders/":                       {"/orders/", nil},
		"/orders/:id":                    {"/orders/{id}", []string{"id"}},
		"/orders/:id/pay":                {"/orders/{id}/pay", []string{"id"}},
		"/orders/{id}/pay":               {"/orders/{id}/pay", []string{"id"}},
		"POST /orders/{id}/pay":          {"/orders/{id}/pay", []string{"id"}},
		"POST \t example.com/orders/":    {"example.com/orders/", nil},
		"/:tenant/orders/:id":            {"/{tenant}/orders/{id}", []string{"tenant", "id"}},
		"/orders/{id:[0-9]{4}}":          {"/orders/{id}", []string{"id"}},
		"/orders/{date:[0-9]+/[0-9]+}/x": {"/orders/{date}/x", []string{"date"}},
		"/orders/{a}-{b}":                {"/orders/{a}-{b}", []string{"a", "b"}},
		"/user_:name/x":                  {"/user_{name}/x", []string{"name"}},
		"/files/*path":                   {"/files/{path...}", []string{"path"}},
		"/files/{path...}":               {"/files/{path...}", []string{"path"}},
		"/files/*":                       {"/files/*", []string{"*"}},
		"/orders/{$}":                    {"/orders/{$}", nil},
		`/orders/\:id`:                   {`/orders/\:id`, nil},
		`/orders/\:id/:id`:               {`/orders/\:id/{id}`, []string{"id"}},
		"/a/{":                           {"/a/{", nil},
		"/a/{}":                          {"/a/{}", nil},
		"/a/:/b":                         {"/a/:/b", nil},
	} {
		require.Equal(t, test.want, httplock.NormalizePattern(pattern), pattern)
		require.Equal(t, test.params, httplock.PatternParams(pattern), pattern)
	}
}

func FuzzNormalFormIsItsOwn(f *testing.F) {
	for _, pattern := range []string{"/orders/:id", "GET /{a}/{b...}", `/\:x/*y`, "/{a:{}}:b", "/{:}", "{x y", "A B C"} {
		f.Add(pattern)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		normal := httplock.NormalizePattern(pattern)
		require.Equal(t, normal, httplock.NormalizePattern(normal))
		require.Equal(t, httplock.PatternParams(pattern), httplock.PatternParams(normal))
	})
}
