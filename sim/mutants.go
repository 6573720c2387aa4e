package main

import (
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/perkey-go/perkey/sim/plan"
)

// mutant is a broken piece of core or of delayqueue, as the tests there have it.
type mutant struct {
	name     string
	worlds   []string
	file     string // of Go; "": it is in scripts
	script   string // "": all that have the piece
	old, new string // in a file of Go %s or %[1]s is true in this mutant
}

// mutantFolders are where tests have mutants that a world may kill, and which.
var mutantFolders = map[string][]string{
	"../core": {"locks", "queue"}, "../core/internal/waitqueue": {"locks"}, "../core/internal/schedule": {"locks"}, "../delayqueue": {"queue"},
}

// readMutants reads the mutants that the tests of a folder have: elements of lists of mutant, scriptMutant, engineMutant and
// mutant.Mutant.
func readMutants(folder string) (all []mutant, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			list, is := n.(*ast.CompositeLit)
			if !is || !isMutants(list.Type) {
				return true
			}
			for _, element := range list.Elts {
				m := mutantOf(element)
				if m.file != "" {
					m.file = filepath.Join(folder, m.file)
				}
				m.worlds = mutantFolders[folder]
				if m.old != "" && (m.file != "" || !strings.Contains(m.new, "%s") && !strings.Contains(m.new, "%[1]s")) { // else its file is a constant
					all = append(all, m)
				}
			}
			return false
		})
	}
	return all, err
}

func isMutants(t ast.Expr) bool {
	array, is := t.(*ast.ArrayType)
	if !is {
		return false
	}
	switch of := array.Elt.(type) {
	case *ast.Ident:
		return strings.HasSuffix(strings.ToLower(of.Name), "mutant")
	case *ast.SelectorExpr:
		return of.Sel.Name == "Mutant"
	}
	return false
}

// mutantOf reads an element, whose fields have names, or are the name, the script, and what is replaced by what.
func mutantOf(element ast.Expr) (m mutant) {
	fields := []*string{&m.name, &m.script, &m.old, &m.new}
	named := map[string]*string{"name": &m.name, "file": &m.file, "script": &m.script, "old": &m.old, "new": &m.new}
	literal, is := element.(*ast.CompositeLit)
	if !is { // it is elsewhere
		return m
	}
	for i, e := range literal.Elts {
		switch e := e.(type) {
		case *ast.KeyValueExpr:
			if field := named[strings.ToLower(e.Key.(*ast.Ident).Name)]; field != nil {
				*field = textOf(e.Value)
			}
		default:
			if i < len(fields) {
				*fields[i] = textOf(e)
			}
		}
	}
	return m
}

// textOf is the value of a string in a source; "" for what is something else.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return textOf(e.X) + textOf(e.Y)
	}
	return ""
}

// buildMutants builds a world with all mutants in it: its second argument chooses one.
func buildMutants(ctx context.Context, dir string, all []mutant) (binary, error) {
	replaced := map[string]string{} // by path
	change := func(path string, text func(old string) (string, error)) error {
		path, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		old := replaced[path]
		if old == "" {
			data, err := os.ReadFile(path)
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			old = string(data)
		}
		replaced[path], err = text(old)
		return err
	}
	once := func(old, with string) func(string) (string, error) {
		return func(text string) (string, error) {
			if n := strings.Count(text, old); n != 1 {
				return text, fmt.Errorf("%q is there %d times, and not once", old, n)
			}
			return strings.Replace(text, old, with, 1), nil
		}
	}
	chosen := func(folder, pkg string) error {
		return change(filepath.Join(folder, "zz_mutant.go"), func(string) (string, error) {
			return "package " + pkg + "\n\nimport (\n\t\"os\"\n\t\"strings\"\n)\n\nvar chosenMutant = strings.TrimSpace(os.Args[2])\n", nil
		})
	}
	const loader = "../internal/luascript/luascript.go"
	var table strings.Builder
	for _, m := range all {
		if m.file == "" {
			fmt.Fprintf(&table, "\t%q: {%q, %q, %q},\n", m.key(), m.script, m.old, m.new)
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), m.file, nil, parser.PackageClauseOnly)
		if err != nil {
			return "", err
		}
		if err := chosen(filepath.Dir(m.file), file.Name.Name); err != nil {
			return "", err
		}
		if err := change(m.file, once(m.old, fmt.Sprintf(m.new, fmt.Sprintf("(chosenMutant == %q)", m.key())))); err != nil {
			return "", fmt.Errorf("%s, %s: %w", m.file, m.name, err)
		}
	}
	if err := chosen(filepath.Dir(loader), "luascript"); err != nil {
		return "", err
	}
	load := once("return New(read(files, name+\".lua\"))", "return New(mutated(name, read(files, name+\".lua\")))")
	if err := change(loader, load); err != nil {
		return "", err
	}
	if err := change(loader, func(text string) (string, error) { return text + fmt.Sprintf(mutating, table.String()), nil }); err != nil {
		return "", err
	}
	paths := map[string]string{}
	for path, text := range replaced {
		paths[path] = filepath.Join(dir, fmt.Sprint("mutated", len(paths), ".go"))
		if err := os.WriteFile(paths[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	return build(ctx, dir, paths)
}

// mutating is what the loader of scripts has beside.
const mutating = `
var mutants = map[string][3]string{
%s}

func mutated(name, text string) string {
	m, is := mutants[chosenMutant]
	if is && (m[0] == "" || m[0] == name) && strings.Count(text, m[1]) == 1 {
		return strings.Replace(text, m[1], m[2], 1)
	}
	return text
}
`

// tryMutants plays worlds of each mutant whose name matches until one breaks a promise, and appends what came of it to a file. It leaves
// out those that the file has.
func tryMutants(ctx context.Context, c plan.Config, seeds uint64, match *regexp.Regexp, results string) error {
	all, tried, b, err := withMutants(ctx, results)
	if err != nil {
		return err
	}
	defer b.remove()
	for _, m := range all {
		if _, is := tried[m.key()]; is || !match.MatchString(m.name) {
			continue
		}
		took, what := b.kill(c, m, seeds)
		fmt.Println(took, m.where(), m.name, what)
		if err := (plan.Mutant{Seeds: took, Where: m.where(), Name: m.name, What: what}).Append(results); err != nil {
			return err
		}
	}
	return nil
}

// checkMutants plays a world of each mutant of a script that a file says is found within so many seeds, and further ones if the one
// that found it does not any more.
func checkMutants(ctx context.Context, c plan.Config, seeds uint64, results string) error {
	all, tried, b, err := withMutants(ctx, results)
	if err != nil {
		return err
	}
	defer b.remove()
	found, plays := 0, uint64(0)
	var missed []string
	for _, m := range all {
		before := tried[m.key()]
		if m.file != "" || before == 0 || before > seeds {
			continue
		}
		c.Seed = before
		took, _ := b.kill(c, m, 1)
		plays++
		if took == 0 {
			c.Seed = 1
			took, _ = b.kill(c, m, 4*seeds)
			plays += max(took, 1)
		}
		if took == 0 {
			missed = append(missed, m.name)
			continue
		}
		found++
	}
	fmt.Printf("%d mutants of scripts found in %d worlds, %d not: %s\n", found, plays, len(missed), strings.Join(missed, ", "))
	if found == 0 || len(missed) > 0 {
		return fmt.Errorf("%d mutants are not found any more", len(missed))
	}
	return nil
}

// withMutants reads all mutants, and from a file how many seeds each took, by its key; and builds a world with all of them.
func withMutants(ctx context.Context, results string) (all []mutant, tried map[string]uint64, b binary, err error) {
	known, err := plan.ReadMutants(results)
	if err != nil {
		return nil, nil, "", err
	}
	tried = map[string]uint64{}
	for _, m := range known {
		tried[m.Where+"\t"+m.Name] = m.Seeds
	}
	for _, folder := range slices.Sorted(maps.Keys(mutantFolders)) {
		some, err := readMutants(folder)
		if err != nil {
			return nil, nil, "", err
		}
		all = append(all, some...)
	}
	names := map[string]int{}
	for i := range all {
		m := &all[i]
		if names[m.key()]++; names[m.key()] > 1 {
			m.name += fmt.Sprintf(" (%d)", names[m.key()])
		}
	}
	slices.SortStableFunc(all, func(a, b mutant) int { return strings.Compare(a.file, b.file) }) // scripts first
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, nil, "", err
	}
	if b, err = buildMutants(ctx, dir, all); err != nil {
		_ = os.RemoveAll(dir)
	}
	return all, tried, b, err
}

func (b binary) remove() { _ = os.RemoveAll(filepath.Dir(string(b))) }

// where says in which file a mutant is, or in which script.
func (m mutant) where() string {
	if m.file != "" {
		return strings.TrimPrefix(m.file, "../")
	}
	return m.worlds[0] + ", " + cmp.Or(m.script, "several")
}

func (m mutant) key() string { return m.where() + "\t" + m.name }

// kill plays worlds of a mutant from the first seed on, on all cores, and returns how many it took until one found it; 0: none did.
func (b binary) kill(c plan.Config, m mutant, seeds uint64) (took uint64, what string) {
	var mu sync.Mutex
	var players sync.WaitGroup
	next := uint64(0)
	for range runtime.NumCPU() {
		players.Go(func() {
			for {
				mu.Lock()
				n := next
				next++
				done := took > 0 || n >= seeds
				mu.Unlock()
				if done {
					return
				}
				this := c
				this.Seed, this.World, this.Mutant = c.Seed+n, m.worlds[(c.Seed+n)%uint64(len(m.worlds))], m.key()
				r, _, err := b.play(this)
				mu.Lock()
				switch {
				case err != nil && (took == 0 || n+1 < took):
					took, what = n+1, strings.SplitN(err.Error(), "\n", 3)[0]
				case len(r.Violations) > 0 && (took == 0 || n+1 < took):
					took, what = n+1, r.Violations[0]
				}
				mu.Unlock()
			}
		})
	}
	players.Wait()
	return took, what
}
