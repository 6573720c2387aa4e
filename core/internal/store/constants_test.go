package store_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/store"
)

var constantLine = regexp.MustCompile(`(?m)^local ([A-Z]+) = (\d+)`)

// sources are the files of the store that match a pattern, without comments. Tests are not among them.
func sources(t *testing.T, pattern, comment string) map[string]string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	texts := map[string]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		texts[name] = regexp.MustCompile(`(?m)`+comment+`.*$`).ReplaceAllString(string(text), "")
	}
	return texts
}

// What scripts and the Locker agree on stands in lua/constants.lua, and nowhere else as a number.
func TestConstants_AreWrittenOnce(t *testing.T) {
	t.Parallel()
	lua := sources(t, "lua/*.lua", "--")
	constants := constantLine.FindAllStringSubmatch(lua["lua/constants.lua"], -1)
	require.GreaterOrEqual(t, len(constants), 6)
	delete(lua, "lua/constants.lua")
	for _, c := range constants {
		name, number := c[1], c[2]
		for file, text := range lua {
			require.NotRegexp(t, `\b`+name+`\b[^\n=]*=[^=]`, text, "%s is written again in %s", name, file)
			if number != "1000" && number != "10" { // those are numbers of other things too
				require.NotRegexp(t, `\b`+number+`\b`, text, "%s is written again in %s", name, file)
			}
		}
		if name == "BLOCK" || name == "ALIVE" {
			for file, text := range sources(t, "*.go", "//") {
				require.NotContains(t, strings.ReplaceAll(text, "_", ""), number, "%s is written again in %s", name, file)
			}
		}
	}
}

// A script that uses a constant has it: Lua would say so only where it is used.
func TestConstants_AreInTheScriptsThatUseThem(t *testing.T) {
	t.Parallel()
	lua, err := os.ReadFile("lua/constants.lua")
	require.NoError(t, err)
	for name, script := range store.Sources {
		require.NotContains(t, script, "#include", name)
		for _, c := range constantLine.FindAllStringSubmatch(string(lua), -1) {
			if regexp.MustCompile(`\b` + c[1] + `\b`).MatchString(script) {
				require.Equal(t, 1, strings.Count(script, "local "+c[1]+" = "), "%s in %s", c[1], name)
			}
		}
	}
}
