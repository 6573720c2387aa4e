package docs_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGo_Compiles checks that each block of Go stands in a file of the repository, or compiles by itself: as declarations, or as
// statements of a function whose parameters a comment in front of the block declares: <!-- go: mux *http.ServeMux -->. What common
// declares need not be. "…" stands for what is left out.
func TestGo_Compiles(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	for _, path := range files(t, ".go") {
		source, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		code.WriteString("\n" + string(source) + "\f")
	}
	packages := load(t)
	for _, d := range documents(t) {
		for _, b := range d.code {
			if b.language == "go" && !stands(code.String(), b.text) {
				for _, problem := range packages.check(b) {
					t.Errorf("%s:%d: stands in no file, and does not compile: %s\n%s", d.path, b.line, problem, b.text)
				}
			}
		}
	}
}

func TestYAML_IsValid(t *testing.T) {
	t.Parallel()
	for _, d := range documents(t) {
		for _, b := range d.code {
			if b.language == "yaml" {
				decoder := yaml.NewDecoder(strings.NewReader(b.text))
				var err error
				for err == nil {
					var value any
					err = decoder.Decode(&value)
				}
				assert.ErrorIs(t, err, io.EOF, "%s:%d", d.path, b.line)
			}
		}
	}
}

var lineBegins = regexp.MustCompile(`(?m)^(.)`)

// stands reports whether the code of the files has the lines, which may be indented there.
func stands(code, lines string) bool {
	for indent := range 4 {
		indented := "\n" + lineBegins.ReplaceAllString(lines, strings.Repeat("\t", indent)+"$1")
		if strings.Contains(code, indented) {
			return true
		}
	}
	return false
}

// packages are those that the repository's main module links, by their import paths.
type packages struct {
	export map[string]string // the file of what a package exports
	files  *token.FileSet
	types.Importer
	path map[string]string // by the package's name: ours before others
}

func load(t *testing.T) packages {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Name}} {{.Export}}", "./...")
	list.Dir = root
	out, err := list.Output()
	require.NoError(t, err)
	p := packages{export: map[string]string{}, path: map[string]string{}, files: token.NewFileSet()}
	p.Importer = importer.ForCompiler(p.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(p.export[path]) })
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		path, name := words[0], words[1]
		p.export[path] = words[2]
		if strings.Contains(path, "internal/") || strings.Contains(path, "vendor/") || strings.Contains(path, "/examples/") {
			continue
		}
		if known := p.path[name]; known == "" || rank(path) < rank(known) {
			p.path[name] = path
		}
	}
	p.path["redis"], p.path["echo"] = "github.com/redis/go-redis/v9", "github.com/labstack/echo/v4"
	return p
}

// rank orders packages that have one name: ours, the standard library's, others.
func rank(path string) int {
	switch {
	case strings.HasPrefix(path, "github.com/perkey-go/perkey/"):
		return 0
	case !strings.Contains(path, "."):
		return len(path)
	}
	return 1000 + len(path)
}

// common is what blocks may use without saying what it is.
const common = `
var (
	ctx    context.Context
	rdb    *redis.Client
	locker *core.Locker
	queue  *delayqueue.Queue
	rt     *config.Runtime
	r      *gin.Engine
	db     *sql.DB
)
`

var statementLeftOut = regexp.MustCompile(`(^|\s)…`)

// check returns why a block does not compile.
func (p packages) check(b block) (problems []string) {
	text := statementLeftOut.ReplaceAllString(b.text, "${1}panic(0)")
	text = strings.ReplaceAll(text, "…", "")
	source := fmt.Sprintf("package p\nfunc _(%s) error {\n%s\npanic(0)\n}\n", b.scaffold, text) + common
	file, err := parser.ParseFile(p.files, "", source, 0)
	if err != nil {
		source = "package p\n" + text + common
		file, err = parser.ParseFile(p.files, "", source, 0)
	}
	if err != nil {
		return []string{err.Error()}
	}
	var imports bytes.Buffer
	imported := map[string]bool{}
	for _, ident := range file.Unresolved {
		if path := p.path[ident.Name]; path != "" && !imported[path] {
			imported[path] = true
			fmt.Fprintf(&imports, "import %s %q\n", ident.Name, path)
		}
	}
	file, err = parser.ParseFile(p.files, "", strings.Replace(source, "package p\n", "package p\n"+imports.String(), 1), 0)
	if err != nil {
		return []string{err.Error()}
	}
	config := types.Config{
		Importer: p,
		Error: func(err error) {
			if e, ok := errors.AsType[types.Error](err); !ok || !e.Soft { // soft: a variable that is not used
				problems = append(problems, err.Error())
			}
		},
	}
	_, _ = config.Check("p", p.files, []*ast.File{file}, nil)
	return problems
}
