package config

import (
	"strconv"
	"strings"
)

// A path names a value as problems show it: guards.pay.on_conflict[0].max_wait.

// member is the path of what a mapping has under a name.
func member(path, name string) string {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}) {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// item is the path of what a list has at an index.
func item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// parentOf is the path of the mapping or list around a value.
func parentOf(path string) string {
	last, quoted := 0, false
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '.' || c == '['):
			last = i
		}
	}
	return path[:last]
}
