package strictyaml

import (
	"regexp"
	"strings"
)

var (
	reference    = regexp.MustCompile(`\$\$\{|\$\{([^}]*)\}?`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// IsVariable reports whether a text can be the name of an environment variable.
func IsVariable(name string) bool { return variableName.MatchString(name) }

// expand puts the values of variables in place of ${NAME}, and ${ in place of $${. It reports what is wrong with one,
// and then returns false.
func (n Node) expand(s *scalar) bool {
	ok := true
	s.literal = ""
	last := 0
	var text strings.Builder
	add := func(literal string) {
		s.literal += literal
		text.WriteString(literal)
	}
	for _, at := range reference.FindAllStringIndex(s.text, -1) {
		add(s.text[last:at[0]])
		ref := s.text[at[0]:at[1]]
		last = at[1]
		if ref == "$${" {
			add("${")
			continue
		}
		name, closed := strings.CutSuffix(ref[2:], "}")
		value := n.d.env[name]
		switch {
		case !closed || !IsVariable(name):
			n.Problem("expected the name of an environment variable after ${, as in ${NAME}; $${ stands for the two characters")
			ok = false
		case value == "":
			n.Problem("the environment variable %s is not set", name)
			ok = false
		}
		text.WriteString(value)
		s.kind = isVariable
	}
	add(s.text[last:])
	s.text = text.String()
	return ok
}
