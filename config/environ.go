package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// environ are the environment's variables. An empty one counts as not set.
type environ map[string]string

func readEnviron() environ {
	env := environ{}
	for _, pair := range os.Environ() {
		if name, value, _ := strings.Cut(pair, "="); value != "" {
			env[name] = value
		}
	}
	return env
}

const variablePrefix = "PERKEY_"

// variable is what overrides the value at a path.
func variable(path string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// overridden reports whether variables override what is at a path: prefix, service, and all of
// redis and defaults that is a single value or a list of words.
func overridden(path string) bool {
	return path == "prefix" || path == "service" || strings.HasPrefix(path, "redis.") || strings.HasPrefix(path, "defaults.")
}

// serviceVariable is what Kubernetes sets for each Service, of which one may be named
// perkey-redis or perkey-redis-master.
var serviceVariable = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`)

// override takes what the environment has in place of what the file has.
func (d *decoder) override() {
	known := d.overrideIn(reflect.ValueOf(&d.file.says).Elem(), "")
	for _, name := range slices.Sorted(maps.Keys(d.env)) {
		for _, section := range []string{"PERKEY_REDIS_", "PERKEY_DEFAULTS_"} {
			if rest, ours := strings.CutPrefix(name, section); ours && !serviceVariable.MatchString(name) && !slices.Contains(known, name) {
				d.in(place{variable: name}, "", "no setting has this name"+meantVariable(section, rest, known))
			}
		}
	}
}

// meantVariable suggests one of a section's.
func meantVariable(section, rest string, known []string) string {
	var others []string
	for _, k := range known {
		if other, ok := strings.CutPrefix(k, section); ok {
			others = append(others, other)
		}
	}
	if best := nearest(rest, others); best != "" {
		return meant(section + best)
	}
	return ""
}

// overrideIn is override for one section. It returns the names of its variables.
func (d *decoder) overrideIn(section reflect.Value, path string) (known []string) {
	for _, f := range fieldsOf(section.Type()) {
		at, v := member(path, f.name), section.FieldByIndex(f.index)
		name := variable(at)
		switch {
		case v.Kind() == reflect.Struct && v.Type() != secretType:
			known = append(known, d.overrideIn(v, at)...)
		case v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct:
			known = append(known, d.overrideOptional(v, at)...)
		case !overridden(at) || v.Type() == chainType || v.Kind() == reflect.Map:
		default:
			known = append(known, name)
			if text, ok := d.env[name]; ok {
				d.file.places[at] = place{variable: name}
				d.setText(text, at, v, f.tag)
			}
		}
	}
	return known
}

// overrideOptional is overrideIn for a section that the file may not have.
func (d *decoder) overrideOptional(v reflect.Value, path string) (known []string) {
	fresh := reflect.New(v.Type().Elem())
	if !v.IsNil() {
		return d.overrideIn(v.Elem(), path)
	}
	known = d.overrideIn(fresh.Elem(), path)
	for _, name := range known {
		if _, ok := d.env[name]; ok {
			v.Set(fresh)
			d.file.places[path] = place{variable: name}
			break
		}
	}
	return known
}

// setText stores the text of a variable. A list is separated by commas.
func (d *decoder) setText(text, path string, v reflect.Value, tag reflect.StructTag) {
	switch v.Kind() {
	case reflect.Slice:
		v.SetZero() // the file's
		for i, one := range strings.Split(text, ",") {
			delete(d.file.places, item(path, i))
			v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
			one = strings.TrimSpace(one)
			if e := v.Index(i); e.Kind() == reflect.String {
				e.SetString(one)
			} else if err := (scalar{text: one, kind: isText, hidden: true}).set(e, tag); err != nil {
				d.at(path, "%v", err)
				return
			}
		}
		return
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if err := (scalar{text: text, kind: isText, hidden: true}).set(v, tag); err != nil {
		d.at(path, "%v", err)
	}
}

var reference = regexp.MustCompile(`\$\$\{|\$\{([^}]*)\}?`)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// unsetError is the name of a variable that the environment does not have.
type unsetError string

func (name unsetError) Error() string {
	return fmt.Sprintf("the environment variable %s is not set", string(name))
}

// replaced reports whether a variable overrides the value at a path, or the list that has it.
func (d *decoder) replaced(path string) bool {
	path, _, _ = strings.Cut(path, "[")
	_, ok := d.env[variable(path)]
	return ok
}

// expand puts the values of variables in place of ${NAME}, and ${ in place of $${.
func (d *decoder) expand(text string) (expanded string, err error) {
	expanded = reference.ReplaceAllStringFunc(text, func(ref string) string {
		name, closed := strings.CutSuffix(strings.TrimPrefix(ref, "${"), "}")
		value, ok := d.env[name]
		switch {
		case ref == "$${":
			return "${"
		case !closed || !variableName.MatchString(name):
			err = errors.New("has a ${ that begins no ${NAME}; want the name of an environment variable, or $${ for the two characters")
		case !ok:
			err = unsetError(name)
		}
		return value
	})
	return expanded, err
}
