package luascript_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Redis's Lua has one kind of number, and Redis cuts a fraction off a reply. Under Lua 5.4, as in Dragonfly, a number that comes
// from a division is a float and is replied as one, though it is whole. So whatever makes a float is floored, or only compared.
func TestScripts_NumbersThatAreRepliedAreIntegers(t *testing.T) {
	t.Parallel()
	scripts, floats := 0, 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == "bin") {
			return fs.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".lua" {
			return err
		}
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		scripts++
		for i, line := range strings.Split(string(source), "\n") {
			made, ok := floatsOf(line)
			floats += made
			if !ok {
				t.Errorf("%s:%d: a float that is neither floored nor compared: %s", path, i+1, line)
			}
		}
		return nil
	}))
	require.Greater(t, scripts, 50)
	require.Greater(t, floats, 20)
}

func TestFloatsOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"local now = math.floor(micros / 1000)":            true,
		"local now = (micros - micros % 1000) / 1000":      false,
		"if now - since >= retention / 4 and x then":       true,
		"if x and since / 4 or now > 3 then":               false,
		"return math.max(math.floor(a / 2), b / 2)":        false,
		"local NEVER = 1e15":                               false,
		"local n = 2 ^ 3":                                  false,
		"-- half / of it":                                  true,
		"local a = match(text, '^a/b$') -- c / d":          true,
		"place = math.floor((from - 1) * n / #queue + .5)": true,
		"for i = 1, #found / 2 do":                         true,
	} {
		_, ok := floatsOf(line)
		require.Equal(t, want, ok, line)
	}
}

var (
	text     = regexp.MustCompile(`'[^']*'|"[^"]*"|--.*`)
	floored  = regexp.MustCompile(`math\.(floor|ceil)\(([^()]|\([^()]*\)|\(([^()]|\([^()]*\))*\))*\)`)
	loop     = regexp.MustCompile(`^\s*for \w+ = \d+,`) // the first value and the step make the kind
	compares = regexp.MustCompile(`[<>=~]=|[<>]`)
	ends     = regexp.MustCompile(`\b(and|or|if|elseif|then|return)\b|[(),=]`)
	float    = regexp.MustCompile(`/|\^|\d\.\d|\d[eE]\d`)
)

// floatsOf is how many floats a line of Lua makes, and whether each is floored or compared.
func floatsOf(line string) (made int, ok bool) {
	line = text.ReplaceAllString(line, "''")
	made = len(float.FindAllString(line, -1))
	if loop.MatchString(line) {
		return made, true
	}
	line = compares.ReplaceAllString(floored.ReplaceAllString(line, "0"), "<")
	for _, part := range ends.Split(line, -1) {
		if float.MatchString(part) && !strings.Contains(part, "<") {
			return made, false
		}
	}
	return made, true
}
