// Package buildinfo says with which perkey a program was built.
package buildinfo

import (
	"cmp"
	"runtime/debug"
)

const module = "github.com/perkey-go/perkey"

// Version is that of perkey in a program: "(devel)" for a directory in its place, and empty if it is not known.
func Version(info *debug.BuildInfo) string {
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return cmp.Or(m.Version, "(devel)")
	}
	return ""
}
