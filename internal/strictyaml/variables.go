package strictyaml

import (
	"regexp"
	"strings"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// IsVariable reports whether a text can be the name of an environment variable.
func IsVariable(name string) bool { return variableName.MatchString(name) }

// upperCase are the names that variables have by convention.
var upperCase = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// NotSet says that a variable has no value. Another name than one in upper case may be a password that was put into the
// place of one, as in ${hunter2}, and is not shown.
func NotSet(name string) string {
	if upperCase.MatchString(name) {
		return "the environment variable " + Clip(name) + " is not set"
	}
	return "the environment variable is not set; its name is not shown, since with lower-case letters it may be a password"
}

// expand puts the values of variables in place of ${NAME}, and ${ in place of $${. It reports what is wrong with one,
// and then returns false.
func (n Node) expand(s *scalar) bool {
	ok := true
	var text, literal strings.Builder
	add := func(part string) {
		literal.WriteString(part)
		text.WriteString(part)
	}
	rest := s.text
	for {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			break
		}
		if unescaped, escaped := strings.CutSuffix(before, "$"); escaped {
			add(unescaped + "${")
			rest = after
			continue
		}
		add(before)
		name, behind, closed := strings.Cut(after, "}")
		rest = behind
		value := n.d.env[name]
		switch {
		case !closed || !IsVariable(name):
			n.Problem("expected the name of an environment variable after ${, as in ${NAME}; $${ stands for the two characters")
			ok = false
		case value == "":
			n.Problem("%s", NotSet(name))
			ok = false
		}
		if text.Len()+len(value) > MaxSize {
			n.Problem("is larger than %d bytes with its environment variables", MaxSize)
			return false
		}
		text.WriteString(value)
		s.kind = isVariable
	}
	add(rest)
	s.text, s.literal = text.String(), literal.String()
	return ok
}
