package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// misplaced are secrets, and what must not be seen of each.
var misplaced = map[string]string{
	"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=":                     "MDEyMzQ1",
	"q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA":                      "q83vEjRW",
	"T0/+2eWqUUa0VYKpVKXJ4wT0/+2eWqUUa0VYKpVKXJ4=":                     "UUa0VYKp",
	"_9j_4AAQSkZJRgABAQEAYABgAAD_2wBDAAIBAQIBAQI=":                     "JRgABAQE",
	"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff": "445566",
	"redis://shop:hunter2@redis.internal:6379":                         "hunter2",
	"rediss://:correct horse@battery@redis.internal":                   "horse",
}

// paths are where a document can have a value.
func paths(section reflect.Type) (all []string) {
	for _, f := range strictyaml.Fields(section) {
		all = append(all, f.Name)
		t := f.Type
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Map {
			if t.Kind() == reflect.Map {
				f.Name += ".m"
				if strings.HasPrefix(f.Name, "routes") {
					f.Name = "routes.POST /x"
				}
				all = append(all, f.Name)
			}
			t = t.Elem()
		}
		var inner []reflect.Type
		switch {
		case t == reflect.TypeFor[routeSection]():
			inner = append(inner, reflect.TypeFor[guardSection]())
		case t == reflect.TypeFor[taskSection]():
			inner = append(inner, reflect.TypeFor[leaseSection]())
		case t == reflect.TypeFor[chain]():
			for _, name := range policies {
				inner = append(inner, reflect.TypeOf(newPolicy(name)).Elem())
			}
		case isSection(t):
			inner = append(inner, t)
		}
		for _, section := range inner {
			for _, path := range paths(section) {
				all = append(all, f.Name+"."+path)
			}
		}
	}
	return all
}

// fileWith is a file with a value at a path.
func fileWith(path, value string) string {
	names := strings.Split(path, ".")
	var b strings.Builder
	for i, name := range names {
		fmt.Fprintf(&b, "%q: ", name)
		if i < len(names)-1 {
			b.WriteString("{")
		}
		if policy := ""; i > 0 && names[i-1] == "on_conflict" {
			switch name {
			case "queue", "max_age", "coalesce", "quiet_period", "max_delay":
				policy = "policy: delay, "
			case "policy":
			default:
				policy = "policy: retry, "
			}
			file := strings.TrimSuffix(b.String(), fmt.Sprintf("%q: ", name))
			b.Reset()
			b.WriteString(file + policy + fmt.Sprintf("%q: ", name))
		}
	}
	return b.String() + value + strings.Repeat("}", len(names)-1)
}

// A secret can get into every place that a file has: as a value, a name, a part of one of these, or under a name that
// does not exist. Nothing that can be printed shows it.
func TestProblems_ShowNoMisplacedSecret(t *testing.T) {
	t.Parallel()
	all := paths(reflect.TypeFor[document]())
	all = append(all, "unknown", "redis.unknown", "queues.m.unknown", "queues.m.encryption.unknown", "queues.m.encryption.keys.m.unknown", "guards.m.unknown",
		"guards.m.on_conflict.unknown", "defaults.unknown", "asynq.m.unknown")
	assert.Greater(t, len(all), 150)
	// All of them take a minute; each run has others, and all with -tags=soak.
	wrong, turn := 0, rand.N(OneOf)
	for secret, hidden := range misplaced {
		files := []string{secret, secret + ":", "? " + secret, "- " + secret, "redis: " + secret, "a: |" + secret, "'" + secret, "&" + secret + " x", "!" + secret + " x", "redis: [" + secret}
		for _, path := range all {
			for _, form := range []string{
				"%q", "[%q]", "{%q: 1}", "{%q: {}}", "{unknown: %q}", "{unknown: {%[1]q: %[1]q}}", "[[%q]]", "[{policy: %q}]", "{%[1]q: {env: %[1]q}}", "{%[1]q: {unknown: %[1]q}}",
			} {
				files = append(files, fileWith(path, fmt.Sprintf(form, secret)))
			}
			for _, part := range []string{"{%s}", "order:{param.%s}", "{json.x|%s}", "POST /orders/%s", "${%s}", "k=%s", strings.Repeat("long ", 12) + "%s"} {
				part = fmt.Sprintf(part, secret)
				files = append(files, fileWith(path, fmt.Sprintf("%q", part)), fileWith(path, fmt.Sprintf("{%q: x}", part)))
			}
		}
		for _, text := range files {
			if turn++; turn%OneOf != 0 {
				continue
			}
			f, err := parse("f.yaml", []byte(text), nil)
			if err == nil {
				var rt *Runtime
				if rt, err = Build(f); err == nil {
					err = fmt.Errorf("%v %+v %v", f, *f, rt)
					assert.NoError(t, rt.Close())
				}
			} else {
				wrong++
			}
			var shown bytes.Buffer
			slog.New(slog.NewTextHandler(&shown, nil)).Error("x", "error", err)
			slog.New(slog.NewJSONHandler(&shown, nil)).Error("x", "error", err)
			_, _ = fmt.Fprintf(&shown, "%v %+v %#v %s %q", err, err, err, err, err)
			if e, ok := err.(*Error); ok { //nolint:errorlint // as it is
				_, _ = fmt.Fprintf(&shown, "%v %+v %#v", e.Problems, e.Problems, e.Problems)
				marshaled, err := json.Marshal(e)
				assert.NoError(t, err)
				shown.Write(marshaled)
			}
			if !assert.NotContains(t, shown.String(), hidden, text) {
				return
			}
		}
	}
	assert.Greater(t, wrong, 10_000/OneOf)
}
