package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// decoder reads a document from the syntax tree of a file. It goes on after a
// problem, so that it finds all.
type decoder struct {
	*report
	env environ
}

// custom is a value that decodes itself.
type custom interface {
	decode(d *decoder, node ast.Node, path string, at place)
}

var chainType = reflect.TypeFor[chain]()

// field is what a struct can say under one name.
type field struct {
	name  string
	index []int
	tag   reflect.StructTag
}

// fieldsOf lists the fields of a section, those of inlined sections among them.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for f := range t.Fields() {
		switch name, ok := f.Tag.Lookup("yaml"); {
		case !ok:
		case name == ",inline":
			for _, in := range fieldsOf(f.Type) {
				in.index = append(append([]int{}, f.Index...), in.index...)
				fields = append(fields, in)
			}
		default:
			fields = append(fields, field{name, f.Index, f.Tag})
		}
	}
	return fields
}

// document reads the whole file, and reports whether it could be read at all.
func (d *decoder) document(data []byte) bool {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if where, ok := invalidText(data); ok {
		d.in(where, "", "is not UTF-8 text")
		return false
	}
	tree, deep, err := parseYAML(data)
	if deep != nil {
		d.in(place{line: deep.Position.Line, column: deep.Position.Column}, "", "is nested too deeply here; no file is")
		return false
	}
	if err != nil {
		var syntax yaml.Error
		if !errors.As(err, &syntax) {
			d.in(place{}, "", "is no YAML that can be read")
			return false
		}
		d.in(placeOf(syntax), "", "is no YAML: "+quotation.ReplaceAllString(printable(syntax.GetMessage()), "…"))
		return false
	}
	var body ast.Node
	for _, doc := range tree.Docs {
		switch {
		case doc.Body == nil:
		case doc.Body.Type() == ast.DirectiveType:
			d.in(placeOf(doc.Body), "", "directives are not read")
			return false
		case body != nil:
			d.in(startOf(doc.Body), "", "has more than one YAML document; want one")
			return false
		default:
			body = doc.Body
		}
	}
	if body == nil || body.Type() == ast.CommentType || body.Type() == ast.NullType {
		d.in(place{}, "", "is empty")
		return false
	}
	before := len(d.problems)
	where := startOf(body)
	d.decode(body, "", where, reflect.ValueOf(&d.file.says).Elem(), "")
	isMap := body.Type() == ast.MappingType || body.Type() == ast.MappingValueType
	return isMap || len(d.problems) == before
}

// maxNesting is how deep brackets, braces and dashes may be in one another. The parser's
// time grows with the cube of it.
const maxNesting = 100

// parseYAML is the parser's. It must not bring a service down, whatever the file. What it
// returns as deep is where it was not asked, since it would take too long.
func parseYAML(data []byte) (tree *ast.File, deep *token.Token, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the parser failed")
		}
	}()
	tokens := lexer.Tokenize(string(data))
	depth, dashes := 0, 0
	for _, t := range tokens {
		switch dashes++; t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType:
		default:
			dashes = 0
		}
		if depth > maxNesting || dashes > maxNesting {
			return nil, t, nil
		}
	}
	tree, err = parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // document reports them, each
	return tree, nil, err
}

// quotation is what the parser repeats of the file: perhaps of a password that begins
// with | or >.
var quotation = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// printable writes control characters as Go does.
func printable(text string) string {
	var b strings.Builder
	for _, r := range text {
		if quoted := strconv.QuoteRune(r); strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// invalidText returns where text is not UTF-8, or has a zero byte.
func invalidText(data []byte) (place, bool) {
	line, column := 1, 1
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1, r == 0:
			return place{line: line, column: column}, true
		case r == '\n':
			line, column = line+1, 1
		default:
			column++
		}
		data = data[n:]
	}
	return place{}, false
}

func placeOf(n interface{ GetToken() *token.Token }) place {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return place{line: t.Position.Line, column: t.Position.Column}
	}
	return place{}
}

// startOf is where a node begins. The parser has a block mapping begin at its first
// colon.
func startOf(n ast.Node) place {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return placeOf(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return placeOf(n.Key)
	}
	return placeOf(n)
}

// decode stores a node in v. Its place is where problems with it are shown.
func (d *decoder) decode(node ast.Node, path string, at place, v reflect.Value, tag reflect.StructTag) {
	d.file.places[path] = at
	if !d.usable(node, path) {
		return
	}
	if c, ok := reflect.TypeAssert[custom](v.Addr()); ok {
		c.decode(d, node, path, at)
		return
	}
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(node, path, at, v.Elem(), tag)
	case v.Kind() == reflect.Struct && v.Type() != secretType:
		d.section(node, path, v)
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.mapping(node, path, func(name string, entry *ast.MappingValueNode) {
			one := reflect.New(v.Type().Elem()).Elem()
			d.decode(entry.Value, member(path, name), placeOf(entry.Key), one, tag)
			if one.Kind() != reflect.Pointer || !one.IsNil() {
				v.SetMapIndex(reflect.ValueOf(name), one)
			}
		})
	case v.Kind() == reflect.Slice:
		list, ok := node.(*ast.SequenceNode)
		if !ok {
			d.at(path, "%s is no list; want one, such as [a, b]", describe(node))
			return
		}
		for i, n := range list.Values {
			one := reflect.New(v.Type().Elem()).Elem()
			d.decode(n, item(path, i), startOf(n), one, tag)
			v.Set(reflect.Append(v, one))
		}
	default:
		s, ok := d.scalar(node, path)
		if !ok {
			return
		}
		s.hidden = s.hidden || v.Kind() == reflect.String && strings.HasPrefix(path, "redis.")
		if err := s.set(v, tag); err != nil {
			d.at(path, "%v", err)
		}
	}
}

// usable refuses what no value of ours may be.
func (d *decoder) usable(node ast.Node, path string) bool {
	switch node.(type) {
	case nil, *ast.NullNode:
		d.at(path, "is empty; leave it out, or give it a value")
	case *ast.AnchorNode, *ast.AliasNode:
		d.at(path, "anchors and aliases are not read; give a guard a name, and routes the name of the guard")
	case *ast.TagNode:
		d.at(path, "tags are not read; write the value without one")
	case *ast.DirectiveNode:
		d.at(path, "directives are not read")
	default:
		return true
	}
	return false
}

// section reads a struct.
func (d *decoder) section(node ast.Node, path string, v reflect.Value) {
	fields := fieldsOf(v.Type())
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	d.mapping(node, path, func(name string, entry *ast.MappingValueNode) {
		for _, f := range fields {
			if f.name == name {
				at := placeOf(entry.Key)
				if isScalar(entry.Value) {
					at = startOf(entry.Value)
				}
				d.decode(entry.Value, member(path, name), at, v.FieldByIndex(f.index), f.tag)
				return
			}
		}
		known := slices.Sorted(slices.Values(names))
		if (path == "redis" || strings.HasPrefix(path, "redis.")) && nearest(name, known) == "" { // perhaps a password without its colon
			d.in(placeOf(entry.Key), path, "has a field of an unknown name"+suggest(name, known))
			return
		}
		d.in(placeOf(entry.Key), member(path, clip(name)), "there is no such field"+suggest(name, known))
	})
}

// mapping calls each for what a mapping has, and never twice for one name.
func (d *decoder) mapping(node ast.Node, path string, each func(name string, entry *ast.MappingValueNode)) {
	var entries []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	default:
		d.at(path, "%s is no mapping; want names with values", describe(node))
		return
	}
	first := map[string]int{}
	for _, e := range entries {
		if e.Key.IsMergeKey() {
			d.in(placeOf(e.Key), path, "merge keys are not read; write out what is merged")
			continue
		}
		key, ok := e.Key.(ast.ScalarNode)
		if !ok {
			d.in(placeOf(e.Key), path, "has a key that is no word; want a name")
			continue
		}
		name := nameOf(key)
		if line, ok := first[name]; ok {
			d.in(placeOf(e.Key), member(path, clip(name)), fmt.Sprintf("is there twice, first in line %d", line))
			continue
		}
		first[name] = placeOf(e.Key).line
		each(name, e)
	}
}

// nameOf is a key as it is written, if it is not quoted.
func nameOf(key ast.ScalarNode) string {
	if s, ok := key.(*ast.StringNode); ok {
		return s.Value
	}
	return key.GetToken().Value
}

// scalar reads a single value. In the section redis it may refer to variables.
func (d *decoder) scalar(node ast.Node, path string) (scalar, bool) {
	s := scalar{text: node.GetToken().Value, plain: true}
	switch n := node.(type) {
	case *ast.StringNode:
		s.text, s.kind = n.Value, isString
	case *ast.LiteralNode:
		s.text, s.kind = n.Value.Value, isString
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		s.kind = isNumber
	case *ast.BoolNode:
		s.kind = isBool
	default:
		hint := ""
		if describe(node) == "a mapping" {
			hint = ", in quotes if it has a colon" // the parser takes {a: [b:1]} for {a: [{b: 1}]}
		}
		d.at(path, "%s is no single value; want one%s", describe(node), hint)
		return s, false
	}
	if strings.HasPrefix(path, "redis.") {
		s.hidden = s.kind == isString // whichever field a password got into
		if s.kind == isString && strings.Contains(s.text, "${") {
			text, err := d.expand(s.text)
			if _, unset := errors.AsType[unsetError](err); unset && d.replaced(path) {
				return s, false // it does not count
			}
			if err != nil {
				d.at(path, "%v", err)
				return s, false
			}
			s.plain = !reference.MatchString(strings.ReplaceAll(s.text, "$${", ""))
			if path == "redis.url" { // of which another part may be a variable
				s.plain = s.plain || plainPassword(reference.ReplaceAllString(s.text, ""))
			}
			s.text, s.kind, s.hidden = text, isText, true
		}
	}
	return s, true
}

func isScalar(node ast.Node) bool {
	switch node.(type) {
	case *ast.StringNode, *ast.LiteralNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode, *ast.BoolNode:
		return true
	}
	return false
}

// describe says what a node is, without what is in it.
func describe(node ast.Node) string {
	switch node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.BoolNode:
		return "a boolean"
	default:
		return "a number"
	}
}
