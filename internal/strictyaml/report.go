package strictyaml

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Place is where something is in a document, from 1; both are 0 if it is nowhere in it.
type Place struct{ Line, Column int }

// Problem is one thing that is wrong with a document.
type Problem struct {
	Place
	Path    string // such as guards.pay.on_conflict[0].max_wait; empty: the document as a whole
	Message string
}

// maxProblems bounds how many problems are collected: nobody reads more at once.
const maxProblems = 50

// Report collects what is wrong with a document.
type Report struct {
	places   map[string]Place // of values, by their paths
	problems []Problem
}

// NewReport returns a Report about a document whose values are at these places, by their paths: [Report.Places] of
// another report.
func NewReport(places map[string]Place) *Report { return &Report{places: places} }

// Places are where the values of the document are.
func (r *Report) Places() map[string]Place { return r.places }

// At reports a problem with the value at path. If the document does not have it, the place is that of the nearest
// value around it.
func (r *Report) At(path, format string, args ...any) {
	var where Place
	for p := path; ; p = parentOf(p) {
		found, ok := r.places[p]
		if where = found; ok || p == "" {
			break
		}
	}
	r.In(where, path, format, args...)
}

// In reports a problem at a place. When the report is full it does nothing.
func (r *Report) In(where Place, path, format string, args ...any) {
	if !r.Full() {
		r.problems = append(r.problems, Problem{where, path, fmt.Sprintf(format, args...)})
	}
}

// Add reports what another report found, until the report is full.
func (r *Report) Add(other *Report) {
	r.problems = append(r.problems, other.problems[:min(len(other.problems), maxProblems-len(r.problems))]...)
}

// Full reports whether there are so many problems that no more are collected.
func (r *Report) Full() bool { return len(r.problems) >= maxProblems }

// Failed reports whether there is a problem already with the value at path, or within it.
func (r *Report) Failed(path string) bool {
	return slices.ContainsFunc(r.problems, func(p Problem) bool {
		rest, ok := strings.CutPrefix(p.Path, path)
		return ok && (path == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Problems returns what was collected, in the order of the document, each once. What is in no place comes last. What
// looks like a key or a URL with a password is left out of their texts.
func (r *Report) Problems() []Problem {
	seen := map[Problem]bool{}
	var problems []Problem
	for _, p := range r.problems {
		p.Path, p.Message = withoutSecrets(p.Path), withoutSecrets(p.Message)
		if !seen[p] {
			seen[p] = true
			problems = append(problems, p)
		}
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(max(0, 1-a.Line), max(0, 1-b.Line)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if r.Full() {
		problems = append(problems, Problem{Message: fmt.Sprintf("there may be more problems: these are the first %d", maxProblems)})
	}
	return problems
}

var (
	password = regexp.MustCompile(`://.*@`)
	// A key of 16 bytes or more, in base64 or as hexadecimal digits.
	keyText = regexp.MustCompile(`[A-Za-z0-9+/_-]{22,}={0,2}`)
	letters = []*regexp.Regexp{regexp.MustCompile(`[A-Z]`), regexp.MustCompile(`[a-z]`), regexp.MustCompile(`[0-9]`)}
	hexText = regexp.MustCompile(`[0-9a-fA-F]{32,}`)
)

// withoutSecrets is a text without what looks like a key or a password in the wrong place, such as in that of a name.
func withoutSecrets(text string) string {
	text = password.ReplaceAllString(text, "://…@")
	return keyText.ReplaceAllStringFunc(text, func(run string) string {
		classes := 0
		for _, class := range letters {
			if class.MatchString(run) {
				classes++
			}
		}
		// 32 random bytes in base64 may have no digit, but never letters of one case alone.
		if classes == 3 || classes == 2 && len(run) >= 40 && !letters[2].MatchString(run) || hexText.MatchString(run) {
			return "…"
		}
		return run
	})
}

// Member is the path of what a mapping has under a name.
func Member(path, name string) string {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}) {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// Item is the path of what a list has at an index.
func Item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// parentOf is the path of the mapping or list around a value.
func parentOf(path string) string {
	last, quoted := 0, false
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '.' || c == '['):
			last = i
		}
	}
	return path[:last]
}
