package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/core"
)

// Problem is one thing that is wrong with a file.
type Problem struct {
	// Source is the file's name, or the environment variable that holds the value,
	// such as "$PERKEY_REDIS_URL".
	Source string
	// Line and Column are where in the file, from 1. Both are 0 if it is nowhere
	// in it.
	Line, Column int
	// Path is which value, such as guards.pay.on_conflict[0].max_wait. Empty: the
	// file as a whole.
	Path string
	// Message says what is wrong, and what is allowed. It shows no secret.
	Message string
}

// String is file:line:column: path: message.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Source)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	for _, part := range []string{p.Path, p.Message} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	return b.String()
}

// Error is all that is wrong with a file. It wraps core.ErrInvalidOption.
type Error struct {
	// Problems are in the order of the file, and at least one.
	Problems []Problem
}

// Error lists the problems, one in a line.
func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return "config: " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "config: %d problems:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n\t" + p.String())
	}
	return b.String()
}

// Unwrap returns core.ErrInvalidOption.
func (e *Error) Unwrap() error { return core.ErrInvalidOption }

// place is where a value comes from.
type place struct {
	line, column int
	variable     string // the environment's, if it is not the file's
}

// report collects what is wrong with a file.
type report struct {
	file     *File
	problems []Problem
}

// at records a problem with the value at path. One that the file does not have is
// shown where the nearest thing around it is.
func (r *report) at(path, format string, args ...any) {
	var where place
	for p := path; ; p = parentOf(p) {
		found, ok := r.file.places[p]
		if where = found; ok || p == "" {
			break
		}
	}
	r.in(where, path, fmt.Sprintf(format, args...))
}

func (r *report) in(where place, path, message string) {
	p := Problem{Source: r.file.name, Line: where.line, Column: where.column, Path: path, Message: message}
	if where.variable != "" {
		p.Source = "$" + where.variable
	}
	r.problems = append(r.problems, p)
}

// failed reports whether something is wrong already with the value at path, or
// within it.
func (r *report) failed(path string) bool {
	return slices.ContainsFunc(r.problems, func(p Problem) bool {
		rest, ok := strings.CutPrefix(p.Path, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// err returns what was collected, or nil.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	seen := map[Problem]bool{}
	problems := slices.DeleteFunc(r.problems, func(p Problem) bool {
		twice := seen[p]
		seen[p] = true
		return twice
	})
	slices.SortStableFunc(problems, func(a, b Problem) int {
		// What is not in the file comes last.
		return cmp.Or(cmp.Compare(max(0, 1-a.Line), max(0, 1-b.Line)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Error{Problems: problems}
}

// goName is the name in Go of what was given to a constructor.
var goName = regexp.MustCompile(`^[A-Z]\w*(\(.*?\))?: `)

// reason is what a constructor of the other packages finds wrong, without the
// names that it has in Go.
func reason(err error) string {
	text := err.Error()
	if errors.Is(err, core.ErrInvalidOption) {
		_, text, _ = strings.Cut(text, core.ErrInvalidOption.Error()+": ")
		text = strings.TrimPrefix(text, goName.FindString(text))
	}
	return text
}
