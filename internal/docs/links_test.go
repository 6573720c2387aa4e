package docs_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	link       = regexp.MustCompile(`\]\(<?([^)\s>]+)>?\)`)
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	ours       = regexp.MustCompile(`^https://github\.com/perkey-go/perkey/(?:blob|tree)/main/`)
)

func TestLinks_LeadSomewhere(t *testing.T) {
	t.Parallel()
	all := map[string]document{}
	for _, d := range documents(t) {
		all[d.path] = d
		anchors := d.anchors()
		for i, anchor := range anchors {
			assert.NotContains(t, anchors[:i], anchor, "%s: two headings have one anchor", d.path)
		}
	}
	links := 0
	for _, d := range all {
		for _, m := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(d.text, "code"), -1) {
			links++
			target, base := m[1], path.Dir(d.path)
			if ours.MatchString(target) {
				target, base = ours.ReplaceAllString(target, ""), "."
			}
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			to := d.path
			if file != "" {
				to = path.Join(base, file)
			}
			_, err := os.Stat(filepath.Join(root, to))
			assert.NoError(t, err, "%s: %s leads nowhere", d.path, target)
			if doc, ok := all[to]; ok && anchor != "" {
				assert.True(t, slices.Contains(doc.anchors(), anchor), "%s: %s has no #%s", d.path, to, anchor)
			}
		}
	}
	assert.Greater(t, links, 100, "links were found")
}

// A page shows a promise by the name of a test, or by how the names of some begin: TestFault_….
func TestPages_NameTestsThatAreThere(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	for _, file := range files(t, "_test.go") {
		source, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		tests.Write(source)
	}
	for _, d := range documents(t) {
		for _, m := range regexp.MustCompile(`(-run\s+'?)?\b(Test[A-Z]\w*_\w*)(…?)`).FindAllStringSubmatch(d.text, -1) {
			begins := "\nfunc " + m[2]
			if m[1]+m[3] == "" {
				begins += "("
			}
			if !strings.Contains(tests.String(), begins) {
				t.Errorf("%s: no test is called %s", d.path, m[2])
			}
		}
	}
}

func TestIndex_HasEachPage(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile(root + "/docs/README.md")
	require.NoError(t, err)
	for _, d := range documents(t) {
		if page, ok := strings.CutPrefix(d.path, "docs/"); ok && page != "README.md" {
			assert.Contains(t, string(index), "]("+page+")", "docs/README.md lists each page of docs")
		}
	}
}
