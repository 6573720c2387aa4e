package docs_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// listed is what go list says of a package.
type listed struct {
	ImportPath, Name, Dir string
	GoFiles               []string
	Module                *struct{ Main bool }
}

// list returns the packages of the modules that users import, and all that those import, by path.
var list = sync.OnceValues(func() (map[string]listed, error) {
	all := map[string]listed{}
	for _, module := range []string{"", "lockotel", "lockprom", "cmd/perkey"} {
		list := exec.Command("go", "list", "-deps", "-json=ImportPath,Name,Dir,GoFiles,Module", "./...")
		list.Dir = filepath.Join(root, module)
		out, err := list.Output()
		if err != nil {
			return nil, err
		}
		for packages := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p listed
			err := packages.Decode(&p)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			if before := all[p.ImportPath]; before.Module == nil || !before.Module.Main {
				all[p.ImportPath] = p
			}
		}
	}
	return all, nil
})

// documented is a package with its doc comments.
type documented struct {
	*doc.Package
	fset    *token.FileSet
	symbols map[string]bool // those that a link can name, such as Locker and Locker.Resume
}

func parse(t *testing.T, p listed) documented {
	t.Helper()
	d := documented{fset: token.NewFileSet(), symbols: map[string]bool{}}
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(d.fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, file)
	}
	var err error
	d.Package, err = doc.NewFromFiles(d.fset, files, p.ImportPath)
	require.NoError(t, err)
	for _, e := range d.exported() {
		d.symbols[e.name] = true
	}
	return d
}

// A kind says what a comment must be like.
type kind int

const (
	single  kind = iota // it begins with the name
	grouped             // it may begin with another word
	field               // that of the type may say it all
)

// An exported is one exported name of a package.
type exported struct {
	name string // Locker.Resume for a method or field
	doc  string // its own comment, or that of its group
	kind kind
	at   token.Pos
}

func (d documented) exported() []exported {
	var all []exported
	values := func(values []*doc.Value) {
		for _, v := range values {
			for _, spec := range v.Decl.Specs {
				spec := spec.(*ast.ValueSpec)
				kind := single
				if v.Decl.Lparen.IsValid() && spec.Doc == nil || len(spec.Names) > 1 {
					kind = grouped
				}
				for _, name := range spec.Names {
					if name.IsExported() {
						all = append(all, exported{name.Name, cmp.Or(spec.Doc.Text(), spec.Comment.Text(), v.Doc), kind, name.Pos()})
					}
				}
			}
		}
	}
	funcs := func(of string, funcs []*doc.Func) {
		for _, f := range funcs {
			all = append(all, exported{of + f.Name, f.Doc, single, f.Decl.Pos()})
		}
	}
	values(d.Consts)
	values(d.Vars)
	funcs("", d.Funcs)
	for _, typ := range d.Types {
		all = append(all, exported{typ.Name, typ.Doc, single, typ.Decl.Pos()})
		values(typ.Consts)
		values(typ.Vars)
		funcs("", typ.Funcs)
		funcs(typ.Name+".", typ.Methods)
		for _, spec := range typ.Decl.Specs {
			var fields *ast.FieldList
			switch of := spec.(*ast.TypeSpec).Type.(type) {
			case *ast.StructType:
				fields = of.Fields
			case *ast.InterfaceType:
				fields = of.Methods
			default:
				continue
			}
			for _, f := range fields.List {
				for _, name := range f.Names {
					if name.IsExported() {
						all = append(all, exported{typ.Name + "." + name.Name, f.Doc.Text() + f.Comment.Text(), field, name.Pos()})
					}
				}
			}
		}
	}
	return all
}

// looksLinked finds what was meant as a link in text in which links are resolved.
var looksLinked = regexp.MustCompile(`\[\*?(\w+\.)*[A-Z]\w*\]`)

// A link that resolves to nothing is shown in its brackets, and misleads a reader.
func TestDocComments_LinksResolve(t *testing.T) {
	t.Parallel()
	all, err := list()
	require.NoError(t, err)
	parsed := map[string]documented{}
	get := func(path string) documented {
		d, ok := parsed[path]
		if !ok {
			d = parse(t, all[path])
			parsed[path] = d
		}
		return d
	}
	links := 0
	for path, p := range all {
		if p.Module == nil || !p.Module.Main {
			continue
		}
		d := get(path)
		check := func(at token.Pos, text string) {
			for _, block := range d.Parser().Parse(text).Content {
				for _, text := range texts(block) {
					switch text := text.(type) {
					case comment.Plain:
						for _, link := range looksLinked.FindAllString(string(text), -1) {
							assert.Fail(t, link+" is no link", "%s", d.fset.Position(at))
						}
					case *comment.DocLink:
						links++
						if text.Name == "" || text.ImportPath == "" {
							continue // a package; or of this one, in which the parser has looked it up
						}
						name := text.Name
						if text.Recv != "" {
							name = text.Recv + "." + name
						}
						if _, ok := all[text.ImportPath]; assert.Truef(t, ok, "%s: %s is not imported", d.fset.Position(at), text.ImportPath) {
							assert.Truef(t, get(text.ImportPath).symbols[name], "%s: %s has no %s", d.fset.Position(at), text.ImportPath, name)
						}
					}
				}
			}
		}
		check(token.NoPos, d.Doc)
		for _, e := range d.exported() {
			check(e.at, e.doc)
		}
	}
	assert.NotZero(t, links)
	t.Logf("%d links", links)
}

// texts returns the text in a block, that of lists included and of code not.
func texts(block comment.Block) []comment.Text {
	switch block := block.(type) {
	case *comment.Paragraph:
		return block.Text
	case *comment.Heading:
		return block.Text
	case *comment.List:
		var all []comment.Text
		for _, item := range block.Items {
			for _, block := range item.Content {
				all = append(all, texts(block)...)
			}
		}
		return all
	}
	return nil
}

var article = regexp.MustCompile(`^(A|An|The) `)

// What users see of a package has a comment, which begins with the name.
func TestDocComments_EveryExportedNameHasOne(t *testing.T) {
	t.Parallel()
	all, err := list()
	require.NoError(t, err)
	var wrong []string
	for path, p := range all {
		if p.Module == nil || !p.Module.Main || p.Name == "main" || len(p.GoFiles) == 0 || strings.Contains(path+"/", "/internal/") {
			continue
		}
		d := parse(t, p)
		assert.Truef(t, strings.HasPrefix(d.Doc, "Package "+p.Name+" "), "%s has no package comment", path)
		for _, e := range d.exported() {
			name := e.name[strings.LastIndex(e.name, ".")+1:]
			switch {
			case e.kind == field, name == "Error": // an error's message needs no words
			case e.doc == "":
				wrong = append(wrong, fmt.Sprintf("%s: %s has no comment", d.fset.Position(e.at), e.name))
			case e.kind == single && !strings.HasPrefix(article.ReplaceAllString(e.doc, ""), name):
				wrong = append(wrong, fmt.Sprintf("%s: the comment of %s begins with another word", d.fset.Position(e.at), e.name))
			}
		}
	}
	slices.Sort(wrong)
	assert.Empty(t, strings.Join(wrong, "\n"))
}
