package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBudget_FailsAboveWhatIsAllowed(t *testing.T) {
	allowed, err := parse("| number | of what | stood | may add | goal |\n|---|---|---:|---:|---:|\n| test lines | tests | 1,000 | 20 | 900 |\n")
	require.NoError(t, err)
	require.Equal(t, map[string]line{"test lines": {1000, 20, 900}}, allowed)
	_, over := compare([]number{{"test lines", 1020}}, allowed)
	require.Empty(t, over)
	_, over = compare([]number{{"test lines", 1021}, {"names", 1}}, allowed)
	require.Equal(t, []string{"test lines: 1021, and 1020 are allowed", `the table lacks "names", of which there are 1`}, over)
	_, err = parse("| a | b | 1 | 2 | 3 |\n| a | b | 9 | 2 | 3 |\n")
	require.Error(t, err)
}

func TestBudget_KindsOfFiles(t *testing.T) {
	for name, want := range map[string]kind{
		"core/lease.go":           productGo,
		"cmd/perkey/main.go":      productGo,
		"core/lease_test.go":      testGo,
		"bench/main_test.go":      testGo,
		"internal/test/x/x.go":    testGo,
		"bench/main.go":           other,
		"examples/demo/main.go":   other,
		"scripts/budget/text.go":  other,
		"core/internal/a/b.lua":   other,
		"README.md":               prose,
		"docs/howto/cron.md":      prose,
		"README.de.md":            other,
		"CHANGELOG.md":            other,
		"internal/testimony/a.go": productGo,
	} {
		require.Equal(t, want, kindOf(name), name)
	}
}

func TestBudget_CountsNamesAndOptions(t *testing.T) {
	p := typed(t, map[string]string{"a.go": `package a
type Option func(*T)
type T struct{ A, b int }
func (*T) M() {}
func (*T) m() {}
type I interface{ M() }
func WithA() Option { return nil }
func with() Option { return nil }
type RunOptions struct{ Limit int; own int }
const C = 1
var V, v = 1, 2
`})
	names, options := exported(p.types)
	require.Equal(t, 8, names) // Option, T, M, I, WithA, RunOptions, C, V
	require.Equal(t, 2, options)
}

func TestBudget_TheLargestKnot(t *testing.T) {
	p := typed(t, map[string]string{
		"a.go": "package a\nfunc a() { b() }",
		"b.go": "package a\ntype t struct{ field int }\nfunc b() { var x t; x.m() }",
		"c.go": "package a\nfunc (x t) m() { local := x.field; _ = local; a() }",
		"d.go": "package a\nfunc d() { a(); e() }", // leads into the knot, and not back
		"e.go": "package a\nfunc e() {}",
	})
	require.Equal(t, graph{
		"a.go": {"b.go": true}, "b.go": {"c.go": true}, "c.go": {"a.go": true, "b.go": true},
		"d.go": {"a.go": true, "e.go": true}, "e.go": {},
	}, uses(p))
	require.Equal(t, 3, largestKnot(uses(p)))
	require.Equal(t, 0, largestKnot(graph{"a": {"b": true}, "b": {}}))
}

func typed(t *testing.T, files map[string]string) *pkg {
	t.Helper()
	p := &pkg{fset: token.NewFileSet(), info: &types.Info{Uses: map[*ast.Ident]types.Object{}}}
	for name, text := range files {
		f, err := parser.ParseFile(p.fset, name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		p.files = append(p.files, f)
	}
	var err error
	p.types, err = (&types.Config{Importer: importer.Default()}).Check("a", p.fset, p.files, p.info)
	require.NoError(t, err)
	return p
}
