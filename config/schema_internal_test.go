package config

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// go generate ./config makes it.
func TestSchema_IsMadeOfTheStructs(t *testing.T) {
	t.Parallel()
	made, err := json.MarshalIndent(schemaOf(t), "", "  ")
	require.NoError(t, err)
	made = append(made, '\n')
	if *Update {
		require.NoError(t, os.WriteFile("schema.json", made, 0o600))
		return
	}
	assert.True(t, bytes.Equal(made, Schema()), "schema.json is stale: go generate ./config")
}

// object is a part of a JSON document.
type object map[string]any

// schemaMaker makes the JSON Schema of the structs: what the loader takes, but for what only several values tell.
type schemaMaker struct {
	t    *testing.T
	docs map[string]string // the comments of types and of their fields, as type.field
	defs object
}

func schemaOf(t *testing.T) object {
	t.Helper()
	m := &schemaMaker{t, docComments(t), object{}}
	root := m.section(reflect.TypeFor[document]())
	policy := []any{object{"enum": []string{"reject", "retry"}}}
	for _, name := range policies {
		policy = append(policy, m.ref(reflect.TypeOf(newPolicy(name)).Elem()))
	}
	m.defs["policy"] = object{"anyOf": policy}
	m.defs["chain"] = object{"anyOf": []any{
		object{"$ref": "#/$defs/policy"},
		object{"type": "array", "minItems": 1, "maxItems": len(policies), "items": object{"$ref": "#/$defs/policy"}},
	}}
	m.defs["reference"] = object{"description": "An environment variable.", "type": "string", "pattern": `\$\{[A-Za-z_][A-Za-z0-9_]*\}`}
	m.defs["duration"] = object{
		"type": []string{"string", "integer"}, "minimum": 0, "maximum": 0, "examples": []string{"500ms", "15s", "1h30m"},
		"pattern": `^(0|\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`,
	}
	root["$schema"], root["$defs"] = "https://json-schema.org/draft/2020-12/schema", m.defs
	root["$id"], root["title"] = "https://raw.githubusercontent.com/perkey-go/perkey/main/config/schema.json", "perkey"
	return root
}

// docComments are the comments in document.go.
func docComments(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "document.go", nil, parser.ParseComments)
	require.NoError(t, err)
	docs := map[string]string{}
	text := func(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
	ast.Inspect(file, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		if !ok {
			return true
		}
		for _, spec := range decl.Specs {
			if s, ok := spec.(*ast.TypeSpec); ok {
				if docs[s.Name.Name] = text(decl.Doc); strings.HasPrefix(docs[s.Name.Name], s.Name.Name) {
					delete(docs, s.Name.Name) // it is about the type
				}
				if st, ok := s.Type.(*ast.StructType); ok {
					for _, f := range st.Fields.List {
						for _, name := range f.Names {
							docs[s.Name.Name+"."+name.Name] = text(f.Doc)
						}
					}
				}
			}
		}
		return false
	})
	return docs
}

// ref makes the definition of a struct, and refers to it.
func (m *schemaMaker) ref(section reflect.Type) object {
	name := strings.TrimSuffix(strings.TrimSuffix(section.Name(), "Section"), "Policy")
	if m.defs[name] == nil {
		m.defs[name] = m.section(section)
	}
	return object{"$ref": "#/$defs/" + name}
}

func (m *schemaMaker) section(section reflect.Type) object {
	properties, required, excluded := object{}, []string{}, []any{}
	fields := strictyaml.Fields(section)
	for _, f := range fields {
		properties[f.Name] = m.field(f, section == reflect.TypeFor[redisSection]() || f.Variable)
		if f.Required {
			required = append(required, f.Name)
		}
		for _, other := range fields {
			if !slices.Contains(strings.Split(f.Tag.Get("excludes"), ","), other.Name) {
				continue
			}
			both := object{"required": []string{f.Name, other.Name}}
			if f.Type.Kind() == reflect.Bool { // false is as if it were not given
				both["properties"] = object{f.Name: object{"const": true}}
			}
			excluded = append(excluded, both)
		}
	}
	s := object{"type": "object", "additionalProperties": false, "properties": properties}
	if doc := m.docs[section.Name()]; doc != "" {
		s["description"] = doc
	}
	if len(required) > 0 {
		s["required"] = required
	}
	if len(excluded) > 0 {
		s["not"] = object{"anyOf": excluded}
	}
	return s
}

// field is the schema of a field. What is not a text by itself may be a variable's.
func (m *schemaMaker) field(f strictyaml.Field, variable bool) object {
	v := m.value(f.Type, f.Tag)
	if variable && (v["type"] != "string" || v["pattern"] != nil) && v["type"] != "array" && v["properties"] == nil && !isSection(f.Type) {
		v = object{"anyOf": []any{v, object{"$ref": "#/$defs/reference"}}}
	}
	doc := m.docs[f.Owner.Name()+"."+f.GoName]
	require.NotEmpty(m.t, doc, "%s.%s has no comment", f.Owner.Name(), f.GoName)
	if r := f.Tag.Get("range"); r != "" {
		doc += " Range: " + strictyaml.RangeWords(r) + "."
	}
	v["description"] = doc
	if f.Required && f.Type.Kind() == reflect.Map {
		v["minProperties"] = 1
	}
	return v
}

func isSection(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[strictyaml.Secret]()
}

func (m *schemaMaker) value(t reflect.Type, tag reflect.StructTag) object {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := object{"type": "string", "minLength": 1}
	switch {
	case t == reflect.TypeFor[chain]():
		return object{"$ref": "#/$defs/chain"}
	case t == reflect.TypeFor[routeSection]():
		return object{"anyOf": []any{name, m.ref(reflect.TypeFor[guardSection]())}}
	case t == reflect.TypeFor[taskSection]():
		return object{"anyOf": []any{name, m.ref(reflect.TypeFor[leaseSection]())}}
	case t == reflect.TypeFor[strictyaml.Secret]():
		return name
	case t == reflect.TypeFor[time.Duration]():
		return object{"$ref": "#/$defs/duration"}
	case t == reflect.TypeFor[strictyaml.Size]():
		least, most, _ := strictyaml.Bounds(t, tag.Get("range"))
		zero := map[bool]string{true: "0|"}[least == 0]
		return object{
			"type": []string{"integer", "string"}, "minimum": least, "maximum": most, "examples": []string{"64KiB", "1MiB"},
			"pattern": "^(" + zero + "[1-9][0-9_]*)(B|KiB|MiB|GiB)$",
		}
	}
	switch t.Kind() {
	case reflect.Int:
		least, most, _ := strictyaml.Bounds(t, tag.Get("range"))
		return object{"type": "integer", "minimum": least, "maximum": most}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Struct:
		return m.ref(t)
	case reflect.Map:
		return object{"type": "object", "propertyNames": object{"pattern": tag.Get("names")}, "additionalProperties": m.value(t.Elem(), "")}
	case reflect.Slice:
		return object{"type": "array", "items": m.value(t.Elem(), tag)}
	case reflect.String:
		if choices := strictyaml.Choices(tag); len(choices) > 0 {
			return object{"enum": choices}
		}
		if pattern := tag.Get("pattern"); pattern != "" {
			return object{"type": "string", "pattern": pattern}
		}
		return name
	}
	require.Fail(m.t, "no schema", t)
	return nil
}

// The examples show every field, so that none is without one that is known to work.
func TestSchema_EveryFieldIsInAGoodFile(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for name, data := range GoodFiles(t) {
		f, err := parse(name, data, Environment)
		require.NoError(t, err, name)
		useOf(reflect.ValueOf(f.spec), used)
	}
	for _, section := range []reflect.Type{
		reflect.TypeFor[document](), reflect.TypeFor[redisSection](), reflect.TypeFor[opsSection](), reflect.TypeFor[sentinelSection](), reflect.TypeFor[tlsSection](),
		reflect.TypeFor[defaultsSection](), reflect.TypeFor[queueSection](), reflect.TypeFor[encryptionSection](),
		reflect.TypeFor[encryptionKeyFrom](), reflect.TypeFor[workerSection](), reflect.TypeFor[guardSection](),
		reflect.TypeFor[replicasSection](), reflect.TypeFor[idempotencySection](), reflect.TypeFor[recordsSection](), reflect.TypeFor[rejectPolicy](), reflect.TypeFor[retryPolicy](), reflect.TypeFor[delayPolicy](),
	} {
		for _, f := range strictyaml.Fields(section) {
			assert.True(t, used[section.Name()+"."+f.Name], "%s.%s is in no file of testdata", section.Name(), f.Name)
		}
	}
}

// useOf notes which fields are not zero.
func useOf(v reflect.Value, used map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			useOf(v.Elem(), used)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			useOf(v.MapIndex(key), used)
		}
	case reflect.Slice:
		for i := range v.Len() {
			useOf(v.Index(i), used)
		}
	case reflect.Struct:
		for _, f := range strictyaml.Fields(v.Type()) {
			if field := v.FieldByIndex(f.Index); !field.IsZero() {
				used[v.Type().Name()+"."+f.Name] = true
				useOf(field, used)
			}
		}
		if v.Type() == reflect.TypeFor[routeSection]() {
			useOf(v.FieldByName("own"), used)
		}
		if v.Type() == reflect.TypeFor[step]() {
			useOf(v.FieldByName("policy"), used)
		}
	}
}

// What a tag wants is what the packages take: Build takes both ends of every range.
func TestRanges_BothEndsCanBeBuilt(t *testing.T) {
	t.Parallel()
	line := func(path, value string) string {
		names := strings.Split(path, ".")
		return strings.Join(names[:len(names)-1], ": {") + ": {" + names[len(names)-1] + ": " + value + strings.Repeat("}", len(names)-1)
	}
	build := func(file string) {
		t.Helper()
		f, err := parse("f.yaml", []byte(file), Environment)
		if assert.NoError(t, err, file) {
			rt, err := Build(f, WithPrincipal("users", func(*http.Request) (string, error) { return "", nil },
				func(*http.Request, string) error { return nil }))
			if assert.NoError(t, err, file) {
				assert.NoError(t, rt.Close())
			}
		}
	}
	const server = "\nredis: {url: redis://127.0.0.1:1}"
	for at, section := range map[string]reflect.Type{
		"ops": reflect.TypeFor[opsSection](), "defaults": reflect.TypeFor[defaultsSection](), "queues.q": reflect.TypeFor[queueSection](), "guards.g": reflect.TypeFor[guardSection](),
	} {
		for _, f := range strictyaml.Fields(section) {
			if want := f.Tag.Get("range"); strings.Contains(want, "..") {
				want = strings.TrimPrefix(want, "0|")
				least, most, _ := strings.Cut(want, "..")
				if section.FieldByIndex(f.Index).Type.Kind() == reflect.Slice {
					least, most = "["+least+"]", "["+most+"]"
				}
				if f.Name == "max_waiters_per_principal" {
					least, most = least+", principal: users", most+", principal: users"
				}
				if f.Name == "retention" {
					least += ", worker: {claim_lease: 100ms}"
				}
				build(line(at+"."+f.Name, least) + server)
				build(line(at+"."+f.Name, most) + server)
			}
		}
	}
	for _, f := range strictyaml.Fields(reflect.TypeFor[retryPolicy]()) {
		if least, most, ok := strings.Cut(f.Tag.Get("range"), ".."); ok {
			other := map[string]string{"initial": ", max: 24h", "max": ", initial: 1ms"}[f.Name]
			build("guards: {g: {on_conflict: {policy: retry, " + f.Name + ": " + least + other + "}}}" + server)
			build("guards: {g: {on_conflict: {policy: retry, " + f.Name + ": " + most + other + "}}}" + server)
		}
	}
	for _, age := range []string{"1ms", "8784h"} {
		build("queues: {q: {}}\nguards: {g: {on_conflict: {policy: delay, queue: q, max_age: " + age + "}}}" + server)
	}
	for _, replicas := range []string{"{count: 1, timeout: 1ms}", "{count: 100, timeout: 1m}"} {
		build("guards: {g: {wait_replicas: " + replicas + "}}" + server)
	}
	for _, idempotency := range []string{"{ttl: 1s, keep_body: 0}", "{ttl: 2160h, keep_body: 64MiB}"} {
		build("guards: {g: {anonymous: true, idempotency: " + idempotency + "}}" + server)
	}
}

// And what is past a range is refused by the packages too: the ranges are not narrower than they need to be.
func TestRanges_AreThoseOfThePackages(t *testing.T) {
	t.Parallel()
	for _, section := range []reflect.Type{
		reflect.TypeFor[opsSection](), reflect.TypeFor[defaultsSection](), reflect.TypeFor[queueSection](), reflect.TypeFor[guardSection](),
	} {
		for _, f := range strictyaml.Fields(section) {
			if f.Name == "max_waiters_per_principal" {
				continue // httplock takes every int, which has 32 bits somewhere
			}
			v := section.FieldByIndex(f.Index).Type
			if want := f.Tag.Get("range"); strings.Contains(want, "..") && v.Kind() != reflect.Pointer {
				_, most, _ := strictyaml.Bounds(v, want)
				file := &File{name: "f.yaml", places: map[string]strictyaml.Place{}}
				file.spec.Queues, file.spec.Guards = map[string]*queueSection{"q": {}}, map[string]*guardSection{"g": {leaseSection: leaseSection{Key: "k"}}}
				file.spec.Redis.Addresses, file.spec.Ops = []string{"127.0.0.1:1"}, &opsSection{}
				in := map[reflect.Type]reflect.Value{
					reflect.TypeFor[opsSection]():      reflect.ValueOf(file.spec.Ops).Elem(),
					reflect.TypeFor[defaultsSection](): reflect.ValueOf(&file.spec.Defaults).Elem(),
					reflect.TypeFor[queueSection]():    reflect.ValueOf(file.spec.Queues["q"]).Elem(),
					reflect.TypeFor[guardSection]():    reflect.ValueOf(file.spec.Guards["g"]).Elem(),
				}[section]
				if field := in.FieldByIndex(f.Index); v.Kind() == reflect.Slice {
					field.Set(reflect.MakeSlice(v, 1, 1))
					field.Index(0).SetInt(most + 1)
				} else {
					field.SetInt(most + 1)
				}
				rt, err := Build(file)
				if !assert.Error(t, err, "%s.%s: %s", section.Name(), f.Name, strconv.FormatInt(most+1, 10)) {
					_ = rt.Close()
				}
			}
		}
	}
}
