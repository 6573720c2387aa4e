package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
)

// graph says which file uses which others: a name of the package, a field or a method that the other declares.
type graph map[string]map[string]bool

func uses(p *pkg) graph {
	g := graph{}
	fileOf := func(n interface{ Pos() token.Pos }) string { return filepath.Base(p.fset.Position(n.Pos()).Filename) }
	for _, f := range p.files {
		from := fileOf(f)
		g[from] = map[string]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			if o := p.info.Uses[id]; o != nil && o.Pkg() == p.types && outlivesFunction(o) {
				if to := fileOf(o); to != from {
					g[from][to] = true
				}
			}
			return true
		})
	}
	return g
}

// outlivesFunction reports whether what is named is the package's, a field or a method.
func outlivesFunction(o types.Object) bool {
	if v, ok := o.(*types.Var); ok && v.IsField() {
		return true
	}
	_, isMethod := o.(*types.Func)
	return isMethod || o.Parent() == o.Pkg().Scope()
}

// largestKnot is how many files are in the largest set of files each of which leads to all others, or 0 if none leads back to itself
// (strongly connected components; Tarjan, 1972).
func largestKnot(g graph) (largest int) {
	index, low, onStack := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack, onStack[v] = append(stack, v), true
		for w := range g[v] {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if onStack[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] != index[v] {
			return
		}
		size := 0
		for done := false; !done; size++ {
			last := len(stack) - 1
			done = stack[last] == v
			onStack[stack[last]] = false
			stack = stack[:last]
		}
		if size > 1 {
			largest = max(largest, size)
		}
	}
	for v := range g {
		if index[v] == 0 {
			visit(v)
		}
	}
	return largest
}
