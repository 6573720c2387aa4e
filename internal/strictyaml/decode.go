package strictyaml

import (
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// decode stores the node in v, which the field f describes.
func (n Node) decode(v reflect.Value, f Field) {
	n.d.places[n.path] = n.place
	n.private, n.variable = n.private || f.Private, n.variable || f.Variable
	if kindOf(n.ast) == nothing {
		n.Problem(isEmpty)
		return
	}
	if c, ok := reflect.TypeAssert[Decoder](v.Addr()); ok {
		c.DecodeYAML(n)
		return
	}
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		n.decode(v.Elem(), f)
	case v.Kind() == reflect.Struct && v.Type() != secretType:
		n.section(v)
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		n.each(func(name string, child Node) {
			one := reflect.New(v.Type().Elem()).Elem()
			child.decode(one, Field{Tag: f.Tag})
			if one.Kind() != reflect.Pointer || !one.IsNil() {
				v.SetMapIndex(reflect.ValueOf(name), one)
			}
		})
	case v.Kind() == reflect.Slice:
		items, ok := n.Items()
		if !ok {
			n.Problem("expected a list such as [a, b], got %s", n.what())
			return
		}
		for _, item := range items {
			one := reflect.New(v.Type().Elem()).Elem()
			item.decode(one, Field{Tag: f.Tag})
			v.Set(reflect.Append(v, one))
		}
	default:
		if s, ok := n.scalar(); ok {
			if problem := s.set(v, f.Tag); problem != "" {
				n.Problem("%s", problem)
			}
		}
	}
}

const isEmpty = "is empty; give it a value or leave it out"

// section decodes a struct.
func (n Node) section(v reflect.Value) {
	fields := Fields(v.Type())
	var known []string
	for _, f := range fields {
		known = append(known, f.Name)
	}
	slices.Sort(known)
	var meant []string // by names that are not known
	isMapping := n.each(func(name string, child Node) {
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Name == name })
		if i < 0 {
			meant = append(meant, Nearest(name, known))
			n.unknown(name, child, known)
			return
		}
		child.ofField().decode(v.FieldByIndex(fields[i].Index), fields[i])
	})
	if !isMapping {
		return
	}
	given := func(f Field) bool {
		value := v.FieldByIndex(f.Index)
		return !value.IsZero() && (value.Kind() != reflect.Map || value.Len() > 0)
	}
	for _, f := range fields {
		path := Member(n.path, f.Name)
		if f.Required && !given(f) && !n.d.Failed(path) && !slices.Contains(meant, f.Name) {
			n.Problem("missing field %q", f.Name)
		}
		for _, other := range fields {
			if given(f) && given(other) && slices.Contains(strings.Split(f.Tag.Get("excludes"), ","), other.Name) {
				n.d.At(path, "excludes %s; give one of the two", other.Name)
			}
		}
	}
}

// scalar reads a single value. What is wrong with it is reported, and then ok is false.
func (n Node) scalar() (s scalar, ok bool) {
	if kindOf(n.ast) != scalarKind {
		hint := ""
		if n.IsMapping() {
			hint = "; text with a colon or braces needs quotes"
		}
		n.Problem("expected a single value, got %s%s", n.what(), hint)
		return s, false
	}
	s = scalar{text: n.ast.GetToken().Value, private: n.private}
	switch v := n.ast.(type) {
	case *ast.StringNode:
		s.text, s.kind = v.Value, isText
	case *ast.LiteralNode:
		s.text, s.kind = v.Value.Value, isText
	case *ast.BoolNode:
		s.kind = isBool
	default:
		s.kind = isNumber
	}
	s.literal = s.text
	if n.variable && s.kind == isText {
		return s, n.expand(&s)
	}
	return s, true
}
