package config

import (
	"context"
	"flag"
)

// Update writes testdata/bad.txt with the problems that are found, and schema.json.
var Update = flag.Bool("update", false, "write testdata/bad.txt and schema.json")

// ParseIn is Parse with an environment of its own.
func ParseIn(name string, data []byte, env map[string]string) (*File, error) {
	return parse(name, data, env)
}

// Watcher looks at a file as Watch does, when it is told to.
func (rt *Runtime) Watcher(path string) func(context.Context) {
	w := watch{runtime: rt, path: path, read: rt.File().sum}
	return w.look
}
