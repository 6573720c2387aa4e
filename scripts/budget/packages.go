package main

import (
	"bytes"
	"context"
	"encoding/json"
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
	"strings"
)

const module = "github.com/perkey-go/perkey"

// pkg is a package of the root module. go list fills in what is exported.
type pkg struct {
	ImportPath, Name, Dir, Export string
	GoFiles                       []string
	Standard                      bool
	Module                        *struct{ Path string }

	fset  *token.FileSet
	files []*ast.File
	types *types.Package
	info  *types.Info
}

// load returns the packages of the root module, typed, by folder.
func load() (map[string]*pkg, error) {
	list := exec.CommandContext(context.Background(), "go", "list", "-export", "-deps", "-json=ImportPath,Name,Dir,Export,GoFiles,Standard,Module", "./...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	ours, exports := map[string]*pkg{}, map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Path == module {
			ours[strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")] = &p
		}
	}
	fset := token.NewFileSet()
	from := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range ours {
		if err := p.check(fset, from); err != nil {
			return nil, err
		}
	}
	return ours, nil
}

func (p *pkg) check(fset *token.FileSet, from types.Importer) error {
	p.fset, p.info = fset, &types.Info{Uses: map[*ast.Ident]types.Object{}}
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p.files = append(p.files, f)
	}
	var err error
	p.types, err = (&types.Config{Importer: from}).Check(p.ImportPath, fset, p.files, p.info)
	return err
}

// isPublic reports whether users import a package.
func isPublic(path, name string) bool {
	rest := strings.TrimPrefix(path, module) + "/"
	return name != "main" && !strings.Contains(rest, "/internal/") &&
		!strings.HasPrefix(rest, "/examples/") && !strings.HasPrefix(rest, "/scripts/")
}

// exported counts the exported functions, methods, types, constants and variables of a package, and its options: functions that
// return one, and the exported fields of structs of options, which are named …Options.
func exported(p *types.Package) (names, options int) {
	scope := p.Scope()
	for _, name := range scope.Names() {
		o := scope.Lookup(name)
		if !o.Exported() {
			continue
		}
		names++
		switch o := o.(type) {
		case *types.Func:
			if returnsOption(o) {
				options++
			}
		case *types.TypeName:
			names += methods(o)
			if s, ok := o.Type().Underlying().(*types.Struct); ok && strings.HasSuffix(name, "Options") {
				for f := range s.Fields() {
					if f.Exported() {
						options++
					}
				}
			}
		}
	}
	return names, options
}

// methods counts those that are declared with a receiver: what an interface asks for is part of its type.
func methods(o *types.TypeName) (n int) {
	if o.IsAlias() {
		return 0
	}
	t, ok := o.Type().(*types.Named)
	if !ok {
		return 0
	}
	for m := range t.Methods() {
		if m.Exported() {
			n++
		}
	}
	return n
}

func returnsOption(f *types.Func) bool {
	results := f.Signature().Results()
	if results.Len() == 0 {
		return false
	}
	switch t := results.At(0).Type().(type) {
	case *types.Named:
		return strings.HasSuffix(t.Obj().Name(), "Option")
	case *types.Alias:
		return strings.HasSuffix(t.Obj().Name(), "Option")
	}
	return false
}
