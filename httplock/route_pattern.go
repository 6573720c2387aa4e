package httplock

import "strings"

// NormalizePattern returns a route's pattern in the form of http.ServeMux, so that
// one name of a route is good for all frameworks:
//
//	/orders/:id/pay         gin, echo    /orders/{id}/pay
//	/orders/{id:[0-9]+}     chi          /orders/{id}
//	/files/*path            gin          /files/{path...}
//	POST /orders/{id}/pay   ServeMux     /orders/{id}/pay
//
// A method in front is cut off. What has no counterpart stays as it is: a wildcard
// without a name (*), {$}, a host, an escaped colon (\:). It does not check that a
// framework would take the pattern. The result's own normal form is itself.
func NormalizePattern(pattern string) string {
	var b strings.Builder
	for part := range patternParts(pattern) {
		b.WriteString(part.normal())
	}
	return b.String()
}

// PatternParams returns the names of a pattern's path parameters, in their order,
// whichever framework's form it has. A wildcard without a name is "*".
func PatternParams(pattern string) []string {
	var names []string
	for part := range patternParts(pattern) {
		if part.name != "" {
			names = append(names, part.name)
		}
	}
	return names
}

// patternPart is a parameter, or the text between two of them.
type patternPart struct {
	text string // if it is no parameter
	name string
	rest bool // takes the rest of the path
}

func (p patternPart) normal() string {
	switch {
	case p.name == "":
		return p.text
	case p.name == "*":
		return "*"
	case p.rest:
		return "{" + p.name + "...}"
	}
	return "{" + p.name + "}"
}

// patternParts takes a pattern apart.
func patternParts(pattern string) func(yield func(patternPart) bool) {
	pattern = withoutMethod(pattern)
	return func(yield func(patternPart) bool) {
		text := 0 // where the text in front of at begins
		for at := 0; at < len(pattern); {
			part, n := paramAt(pattern, at)
			if n == 0 {
				at++
				if pattern[at-1] == '\\' && at < len(pattern) {
					at++
				}
				continue
			}
			if text < at && !yield(patternPart{text: pattern[text:at]}) || !yield(part) {
				return
			}
			at += n
			text = at
		}
		if text < len(pattern) {
			yield(patternPart{text: pattern[text:]})
		}
	}
}

// paramAt reads the parameter that begins at a place in a pattern, of n bytes. Zero:
// none does.
func paramAt(pattern string, at int) (part patternPart, n int) {
	rest := pattern[at:]
	switch rest[0] {
	case '{':
		n = closingBrace(rest) + 1
		if n == 0 {
			return part, 0
		}
		part.name, _, _ = strings.Cut(rest[1:n-1], ":")
		part.name, part.rest = strings.CutSuffix(part.name, "...")
	case ':':
		n = 1 + segmentLen(rest[1:])
		part.name = rest[1:n]
	case '*':
		if n = 1 + segmentLen(rest[1:]); n == 1 {
			return patternPart{name: "*", rest: true}, n
		}
		part.name, part.rest = rest[1:n], true
	}
	if part.name == "" || part.name == "$" || strings.ContainsAny(part.name, "{}:*") || strings.HasSuffix(part.name, "...") {
		return part, 0
	}
	return part, n
}

// withoutMethod cuts off the method in front of a pattern.
func withoutMethod(pattern string) string {
	i := strings.IndexAny(pattern, " \t")
	if i < 0 || !isToken(pattern[:i]) {
		return pattern
	}
	rest := strings.TrimLeft(pattern[i:], " \t")
	if !strings.HasPrefix(rest, "/") && strings.ContainsAny(rest, " \t") {
		return pattern
	}
	return rest
}

// closingBrace is where the brace closes that s begins with, or -1. A regular
// expression inside may have braces of its own.
func closingBrace(s string) int {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

func segmentLen(s string) int {
	if i := strings.IndexByte(s, '/'); i >= 0 {
		return i
	}
	return len(s)
}
