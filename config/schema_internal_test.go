package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// node is a part of the schema.
type node map[string]any

// schemaWalk compares the schema with the types that the loader reads.
type schemaWalk struct {
	t    *testing.T
	defs node
	seen map[string]bool // fields, by type and name
}

func TestTheSchemaAndTheLoaderKnowTheSameFields(t *testing.T) {
	t.Parallel()
	var root node
	require.NoError(t, json.Unmarshal(Schema(), &root))
	w := schemaWalk{t, root["$defs"].(map[string]any), map[string]bool{}}
	w.section("", reflect.TypeFor[document](), root)
	for policy, section := range map[string]reflect.Type{
		"reject": reflect.TypeFor[rejectPolicy](), "retry": reflect.TypeFor[retryPolicy](), "delay": reflect.TypeFor[delayPolicy](),
	} {
		w.section("policy "+policy, section, node{"$ref": "#/$defs/" + policy})
	}
	chain := fmt.Sprint(w.defs["policy"])
	for _, policy := range policies {
		assert.Contains(t, chain, "#/$defs/"+policy)
	}
	assert.Greater(t, len(w.seen), 80)
}

// resolved follows a reference. What stands beside it stays.
func (w *schemaWalk) resolved(n node) node {
	if ref, ok := n["$ref"].(string); ok {
		n = maps.Clone(n)
		delete(n, "$ref")
		target := w.defs[strings.TrimPrefix(ref, "#/$defs/")]
		require.NotNil(w.t, target, ref)
		for k, v := range w.resolved(target.(map[string]any)) {
			if _, ok := n[k]; !ok {
				n[k] = v
			}
		}
	}
	return n
}

func (w *schemaWalk) section(path string, section reflect.Type, n node) {
	n = w.resolved(n)
	assert.Equal(w.t, false, n["additionalProperties"], "%s: unknown fields are refused", path)
	properties, _ := n["properties"].(map[string]any)
	var names []string
	for _, f := range fieldsOf(section) {
		names = append(names, f.name)
		if p, ok := properties[f.name].(map[string]any); ok {
			w.seen[section.Name()+"."+f.name] = true
			w.value(member(path, f.name), section.FieldByIndex(f.index).Type, f.tag.Get("want"), p)
		}
	}
	assert.ElementsMatch(w.t, names, slices.Collect(maps.Keys(properties)), path)
}

func (w *schemaWalk) value(path string, v reflect.Type, want string, n node) {
	described, _ := n["description"].(string)
	n = w.resolved(n)
	if strings.HasPrefix(path, "redis.") && v.Kind() != reflect.Slice && v.Kind() != reflect.String && v.Kind() != reflect.Struct && v.Kind() != reflect.Pointer ||
		path == "redis.max_retries" || path == "redis.mode" {
		either := n["anyOf"].([]any)
		assert.Equal(w.t, map[string]any{"$ref": "#/$defs/reference"}, either[1], "%s: may refer to variables", path)
		n = w.resolved(either[0].(map[string]any))
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if !strings.HasSuffix(path, ".policy") && v.Kind() != reflect.Struct {
		assert.NotEmpty(w.t, described, path)
	}
	switch {
	case v == chainType:
		assert.Equal(w.t, w.resolved(node{"$ref": "#/$defs/chain"})["anyOf"], n["anyOf"], path)
	case v == durationType, v == sizeType:
		assert.Contains(w.t, n["type"], "string", path)
		assert.Contains(w.t, described, inWords(want), path)
	case v == secretType:
		assert.Equal(w.t, "string", n["type"], path)
	case v.Kind() == reflect.Struct:
		w.section(path, v, n)
	case v.Kind() == reflect.Map:
		elem := v.Elem().Elem()
		additional := n["additionalProperties"].(map[string]any)
		if elem == reflect.TypeFor[routeSection]() {
			either := additional["anyOf"].([]any)
			assert.Equal(w.t, "string", either[0].(map[string]any)["type"])
			elem, additional = reflect.TypeFor[guardSection](), either[1].(map[string]any)
		} else if elem == reflect.TypeFor[taskSection]() {
			either := additional["anyOf"].([]any)
			assert.Equal(w.t, "string", either[0].(map[string]any)["type"])
			elem, additional = reflect.TypeFor[leaseSection](), either[1].(map[string]any)
		}
		w.section(path, elem, additional)
	case v.Kind() == reflect.Slice:
		assert.Equal(w.t, "array", n["type"], path)
		items := n["items"].(map[string]any)
		if v.Elem().Kind() == reflect.Int {
			w.value(path, v.Elem(), want, node{"description": described, "type": items["type"], "minimum": items["minimum"], "maximum": items["maximum"]})
			return
		}
		assert.Equal(w.t, "string", items["type"], path)
	case v.Kind() == reflect.Int:
		assert.Equal(w.t, "integer", n["type"], path)
		least, most, _ := bounds(v, want)
		assert.InDelta(w.t, least, n["minimum"], 0, path)
		assert.InDelta(w.t, most, n["maximum"], 0, path)
	case v.Kind() == reflect.Bool:
		assert.Equal(w.t, "boolean", n["type"], path)
	case want != "":
		var choices []any
		for c := range strings.SplitSeq(want, "|") {
			choices = append(choices, c)
		}
		assert.Equal(w.t, choices, n["enum"], path)
	default:
		assert.Equal(w.t, "string", n["type"], path)
	}
}

// goodFiles are the files in testdata that are right, by their names.
func goodFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	paths, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		files[path] = data
	}
	require.GreaterOrEqual(t, len(files), 5)
	return files
}

// The examples show every field, so that none is without one that is known to work.
func TestEveryFieldIsInAGoodFile(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for name, data := range goodFiles(t) {
		f, err := parse(name, data, testEnvironment)
		require.NoError(t, err, name)
		useOf(reflect.ValueOf(f.says), used)
	}
	for _, section := range []reflect.Type{
		reflect.TypeFor[document](), reflect.TypeFor[redisSection](), reflect.TypeFor[sentinelSection](), reflect.TypeFor[tlsSection](),
		reflect.TypeFor[defaultsSection](), reflect.TypeFor[queueSection](), reflect.TypeFor[encryptionSection](),
		reflect.TypeFor[encryptionKeyFrom](), reflect.TypeFor[workerSection](), reflect.TypeFor[guardSection](),
		reflect.TypeFor[replicasSection](), reflect.TypeFor[idempotencySection](), reflect.TypeFor[rejectPolicy](), reflect.TypeFor[retryPolicy](), reflect.TypeFor[delayPolicy](),
	} {
		for _, f := range fieldsOf(section) {
			assert.True(t, used[section.Name()+"."+f.name], "%s.%s is in no file of testdata", section.Name(), f.name)
		}
	}
}

var testEnvironment = environ{
	"REDIS_PASSWORD": "a", "SENTINEL_PASSWORD": "b", "POOL": "10", "SHIP_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
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
		for _, f := range fieldsOf(v.Type()) {
			if field := v.FieldByIndex(f.index); !field.IsZero() {
				used[v.Type().Name()+"."+f.name] = true
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
func TestBothEndsOfEveryRangeCanBeBuilt(t *testing.T) {
	t.Parallel()
	line := func(path, value string) string {
		names := strings.Split(path, ".")
		return strings.Join(names[:len(names)-1], ": {") + ": {" + names[len(names)-1] + ": " + value + strings.Repeat("}", len(names)-1)
	}
	build := func(file string) {
		t.Helper()
		f, err := parse("f.yaml", []byte(file), testEnvironment)
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
		"defaults": reflect.TypeFor[defaultsSection](), "queues.q": reflect.TypeFor[queueSection](), "guards.g": reflect.TypeFor[guardSection](),
	} {
		for _, f := range fieldsOf(section) {
			if want := f.tag.Get("want"); strings.Contains(want, "..") {
				want, _ := cutZero(want)
				least, most, _ := strings.Cut(want, "..")
				if section.FieldByIndex(f.index).Type.Kind() == reflect.Slice {
					least, most = "["+least+"]", "["+most+"]"
				}
				if f.name == "max_waiters_per_principal" {
					least, most = least+", principal: users", most+", principal: users"
				}
				build(line(at+"."+f.name, least) + server)
				build(line(at+"."+f.name, most) + server)
			}
		}
	}
	for _, f := range fieldsOf(reflect.TypeFor[retryPolicy]()) {
		if least, most, ok := strings.Cut(f.tag.Get("want"), ".."); ok {
			other := map[string]string{"initial": ", max: 24h", "max": ", initial: 1ms"}[f.name]
			build("guards: {g: {on_conflict: {policy: retry, " + f.name + ": " + least + other + "}}}" + server)
			build("guards: {g: {on_conflict: {policy: retry, " + f.name + ": " + most + other + "}}}" + server)
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

// And what is past a range is refused by the packages too: the ranges are not narrower
// than they need to be.
func TestRangesAreThoseOfThePackages(t *testing.T) {
	t.Parallel()
	for _, section := range []reflect.Type{
		reflect.TypeFor[defaultsSection](), reflect.TypeFor[queueSection](), reflect.TypeFor[guardSection](),
	} {
		for _, f := range fieldsOf(section) {
			if f.name == "max_waiters_per_principal" {
				continue // httplock takes every int, which has 32 bits somewhere
			}
			v := section.FieldByIndex(f.index).Type
			if want := f.tag.Get("want"); strings.Contains(want, "..") && v.Kind() != reflect.Pointer {
				_, most, _ := bounds(v, want)
				file := &File{name: "f.yaml", places: map[string]place{}}
				file.says.Queues, file.says.Guards = map[string]*queueSection{"q": {}}, map[string]*guardSection{"g": {leaseSection: leaseSection{Key: "k"}}}
				file.says.Redis.Addresses = []string{"127.0.0.1:1"}
				in := map[reflect.Type]reflect.Value{
					reflect.TypeFor[defaultsSection](): reflect.ValueOf(&file.says.Defaults).Elem(),
					reflect.TypeFor[queueSection]():    reflect.ValueOf(file.says.Queues["q"]).Elem(),
					reflect.TypeFor[guardSection]():    reflect.ValueOf(file.says.Guards["g"]).Elem(),
				}[section]
				if field := in.FieldByIndex(f.index); v.Kind() == reflect.Slice {
					field.Set(reflect.MakeSlice(v, 1, 1))
					field.Index(0).SetInt(most + 1)
				} else {
					field.SetInt(most + 1)
				}
				rt, err := Build(file)
				if !assert.Error(t, err, "%s.%s: %s", section.Name(), f.name, strconv.FormatInt(most+1, 10)) {
					_ = rt.Close()
				}
			}
		}
	}
}
