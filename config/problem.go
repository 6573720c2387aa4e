package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/strictyaml"
)

// Problem is one mistake in a file.
type Problem struct {
	// Source is the file's name.
	Source string
	// Line and Column are its place in the file, from 1. Both are 0 if it has none.
	Line, Column int
	// Path names the value, such as guards.pay.on_conflict[0].max_wait. Empty: the whole file.
	Path string
	// Message says what is wrong, and what is allowed. It shows no secret.
	Message string
}

// String returns "file:line:column: path: message".
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

// Error has all problems of a file; if there are more than 50, the first 50 found and one that says
// so. It wraps core.ErrInvalidOption.
type Error struct {
	// Problems has at least one problem, in the order of the file.
	Problems []Problem
}

// Error lists the problems, one per line.
func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return "config: " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "config: %d problems:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// Unwrap returns core.ErrInvalidOption.
func (e *Error) Unwrap() error { return core.ErrInvalidOption }

// report collects what is wrong with a file.
type report struct {
	*strictyaml.Report
	file *File
}

func (f *File) report() *report { return &report{strictyaml.NewReport(f.places), f} }

// err returns what was collected, or nil.
func (r *report) err() error {
	if problems := r.problems(); problems != nil {
		return &Error{problems}
	}
	return nil
}

func (r *report) problems() (problems []Problem) {
	for _, p := range r.Problems() {
		problems = append(problems, Problem{r.file.name, p.Line, p.Column, p.Path, p.Message})
	}
	return problems
}

// The paths of what a mapping and a list have.
var member, item = strictyaml.Member, strictyaml.Item

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
