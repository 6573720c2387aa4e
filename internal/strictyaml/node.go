package strictyaml

import (
	"reflect"

	"github.com/goccy/go-yaml/ast"
)

// Node is a value of a document, for a [Decoder].
type Node struct {
	d                 *decoder
	ast               ast.Node
	path              string
	place             Place // where problems are shown
	private, variable bool
}

// Path is where the value is in the document, such as guards.pay.on_conflict[0].
func (n Node) Path() string { return n.path }

// Start is where the value begins.
func (n Node) Start() Place { return startOf(n.ast) }

// Problem reports what is wrong with the value.
func (n Node) Problem(format string, args ...any) { n.d.In(n.place, n.path, format, args...) }

// Got describes the value for problems: "expected a list, got text".
func (n Node) Got() string {
	if k := kindOf(n.ast); k != scalarKind {
		return string(k)
	}
	s, _ := n.scalar()
	return s.show()
}

// IsMapping reports whether the value has names with values.
func (n Node) IsMapping() bool { return kindOf(n.ast) == mapping }

// Items returns the values of a list, or false.
func (n Node) Items() (items []Node, ok bool) {
	list, ok := n.ast.(*ast.SequenceNode)
	if !ok {
		return nil, false
	}
	for i, v := range list.Values {
		items = append(items, n.child(v, Item(n.path, i), startOf(v)))
	}
	return items, true
}

// Text returns a value that is text, or false.
func (n Node) Text() (string, bool) {
	if kindOf(n.ast) != scalarKind {
		return "", false
	}
	if s, ok := n.scalar(); ok && s.kind == isText {
		return s.text, true
	}
	return "", false
}

// Field returns what a mapping has under a name. If there is nothing it reports that.
func (n Node) Field(name string) (found Node, ok bool) {
	similar := false
	known := []string{name}
	isMapping := n.each(func(other string, child Node) {
		if other == name {
			found, ok = child.ofField(), true
		} else if Nearest(other, known) != "" {
			similar = true
			n.unknown(other, child, known)
		}
	})
	if !ok && !similar && isMapping {
		n.Problem("missing field %q", name)
	}
	return found, ok
}

// Decode stores the value in what v points to.
func (n Node) Decode(v any) { n.decode(reflect.ValueOf(v).Elem(), Field{}) }

func (n Node) child(value ast.Node, path string, place Place) Node {
	n.ast, n.path, n.place = value, path, place
	return n
}

// ofField is the node with problems shown at the value, if it is a single one, rather than at its name.
func (n Node) ofField() Node {
	if kindOf(n.ast) == scalarKind {
		n.place = startOf(n.ast)
	}
	return n
}

// each calls f for what a mapping has, and never twice for one name. False: the node is not a mapping, which is reported.
func (n Node) each(f func(name string, child Node)) bool {
	var entries []*ast.MappingValueNode
	switch m := n.ast.(type) {
	case *ast.MappingNode:
		entries = m.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{m}
	default:
		n.Problem("expected a mapping, got %s", n.what())
		return false
	}
	first := map[string]int{}
	for _, e := range entries {
		if n.d.Full() {
			break
		}
		at := placeOf(e.Key)
		key, ok := e.Key.(ast.ScalarNode)
		if !ok {
			n.d.In(at, n.path, "expected a name, got something else before the colon")
			continue
		}
		name := nameOf(key)
		child := n.child(e.Value, Member(n.path, name), at)
		if line, ok := first[name]; ok {
			child.Problem("duplicate; first given in line %d", line)
			continue
		}
		first[name] = at.Line
		f(name, child)
	}
	return true
}

// unknown reports a name that a section does not have. In a private one it may be a secret without its name.
func (n Node) unknown(name string, child Node, known []string) {
	if n.private && Nearest(name, known) == "" {
		n.d.In(child.place, n.path, "unknown field%s", Suggest(name, known))
		return
	}
	n.d.In(child.place, Member(n.path, Clip(name)), "unknown field%s", Suggest(name, known))
}

// nameOf is a key as it is written, if it is not quoted.
func nameOf(key ast.ScalarNode) string {
	if s, ok := key.(*ast.StringNode); ok {
		return s.Value
	}
	return key.GetToken().Value
}

// kind is what a node is, in words.
type kind string

const (
	mapping    kind = "a mapping"
	list       kind = "a list"
	nothing    kind = "nothing"
	scalarKind kind = "a single value"
)

func kindOf(n ast.Node) kind {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return mapping
	case *ast.SequenceNode:
		return list
	case nil, *ast.NullNode:
		return nothing
	default:
		return scalarKind
	}
}

// what describes the node without any of what is in it.
func (n Node) what() string {
	if k := kindOf(n.ast); k != scalarKind {
		return string(k)
	}
	switch n.ast.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.BoolNode:
		return "a boolean"
	default:
		return "a number"
	}
}
