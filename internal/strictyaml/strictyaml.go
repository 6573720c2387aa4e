// Package strictyaml decodes YAML into structs, and guesses nothing: an unknown or repeated name, a value of another
// type and one out of range are problems. It finds all of them at once, each with its line, column and path.
//
// Of YAML it reads mappings, lists and single values. Anchors, aliases, tags, merge keys, directives, complex keys
// and a second document are problems. A value is never empty: a name without a value is a problem too.
//
// Fields of structs have tags:
//
//	yaml:"name"           what the field is called; a field without this tag is not decoded
//	yaml:",inline"        a struct whose fields are fields of the one around it
//	yaml:"name,required"  the field must be given
//	yaml:"name,private"   no problem with this value, or with one inside it, shows any of it
//	yaml:"name,env"       private; ${NAME} in a text stands for an environment variable, and $${ for ${
//	range:"1ms..24h"      the bounds of a duration, a [Size] or an int; "0|1ms..24h" allows 0 besides
//	oneof:"a|b"           the texts that are allowed
//	excludes:"x,y"        fields of the same section that cannot be given together with this one
//
// Values are strings, bools, ints, [time.Duration] with a unit, [Size], [Secret], structs, pointers to these, slices,
// maps with string keys, and types that implement [Decoder].
//
// A document can come from anywhere: time and memory are bounded before it is parsed. See [MaxSize].
package strictyaml

import (
	"reflect"
	"slices"
	"strings"
)

// Decoder is implemented by pointers to types that decode themselves.
type Decoder interface {
	DecodeYAML(n Node)
}

// Decode stores a document in the struct that v points to. The variables of env are those of ${NAME}. It returns
// what is wrong, to which its caller can add; ok is false if there is no document to look at.
func Decode(data []byte, v any, env map[string]string) (r *Report, ok bool) {
	r = NewReport(map[string]Place{})
	body, ok := parse(r, data)
	if !ok {
		return r, false
	}
	n := Node{d: &decoder{r, env}, ast: body, place: startOf(body)}
	n.decode(reflect.ValueOf(v).Elem(), Field{})
	return r, kindOf(body) == mapping
}

// decoder is what all nodes of a document share.
type decoder struct {
	*Report
	env map[string]string
}

// Field is a field of a struct, as its tags describe it.
type Field struct {
	Name              string
	Index             []int // for [reflect.Value.FieldByIndex]
	Type              reflect.Type
	Tag               reflect.StructTag
	Owner             reflect.Type // the struct that declares it
	GoName            string
	Required          bool
	Private, Variable bool // the options private and env
}

// Fields lists the fields of a struct, those of inlined structs among them.
func Fields(t reflect.Type) (fields []Field) {
	for f := range t.Fields() {
		tag, ok := f.Tag.Lookup("yaml")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(tag, ",")
		options := strings.Split(rest, ",")
		if slices.Contains(options, "inline") {
			for _, in := range Fields(f.Type) {
				in.Index = append(append([]int{}, f.Index...), in.Index...)
				fields = append(fields, in)
			}
			continue
		}
		fields = append(fields, Field{
			Name: name, Index: f.Index, Type: f.Type, Tag: f.Tag, Owner: t, GoName: f.Name,
			Required: slices.Contains(options, "required"), Variable: slices.Contains(options, "env"),
			Private: slices.Contains(options, "private") || slices.Contains(options, "env"),
		})
	}
	return fields
}
