// Package docs_test checks the Markdown of the repository, its links and the code that it shows, and the doc comments.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// A document is a Markdown file.
type document struct {
	path  string // from the root
	text  string // without its blocks of code
	code  []block
	plain []string // headings
}

// A block is code between fences. scaffold is what a comment in front of it declares.
type block struct {
	language, text, scaffold string
	line                     int
}

var (
	fence    = regexp.MustCompile("^\\s*(```+)([a-z]*)\\s*$")
	heading  = regexp.MustCompile(`^#{1,6} (.*)$`)
	declared = regexp.MustCompile(`^\s*<!-- go: (.*) -->$`)
)

// files are those of the repository whose names end so.
func files(t *testing.T, suffix string) (paths []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "bin" || name == "node_modules"):
			return filepath.SkipDir
		case !entry.IsDir() && strings.HasSuffix(name, suffix):
			path, err = filepath.Rel(root, path)
			paths = append(paths, filepath.ToSlash(path))
		}
		return err
	}))
	slices.Sort(paths)
	return paths
}

func documents(t *testing.T) (all []document) {
	t.Helper()
	for _, path := range files(t, ".md") {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		d := document{path: path}
		d.read(t, string(text))
		all = append(all, d)
	}
	require.NotEmpty(t, all)
	return all
}

func (d *document) read(t *testing.T, text string) {
	t.Helper()
	var open string // the fence of the block that line is in
	var scaffold string
	var prose strings.Builder
	for i, line := range strings.Split(text, "\n") {
		last := len(d.code) - 1
		m := fence.FindStringSubmatch(line)
		switch {
		case open == "" && m != nil:
			open = m[1]
			d.code = append(d.code, block{language: m[2], scaffold: scaffold, line: i + 1})
		case open != "" && m != nil && m[1] == open && m[2] == "":
			open = ""
		case open != "":
			d.code[last].text += line + "\n"
		default:
			prose.WriteString(line + "\n")
			if m := heading.FindStringSubmatch(line); m != nil {
				d.plain = append(d.plain, m[1])
			}
		}
		scaffold = ""
		if m := declared.FindStringSubmatch(line); m != nil {
			scaffold = m[1]
		}
	}
	require.Empty(t, open, "%s: a block of code is not closed", d.path)
	d.text = prose.String()
}

// anchors are those that GitHub gives the headings.
func (d *document) anchors() (all []string) {
	links := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	for _, text := range d.plain {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, links.ReplaceAllString(text, "$1"))
		all = append(all, anchor)
	}
	return all
}
