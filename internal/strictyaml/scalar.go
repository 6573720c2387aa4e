package strictyaml

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Secret is a text that nothing shows.
type Secret struct {
	value   *string // behind a pointer: package fmt would print it
	literal *string
}

// NewSecret returns a Secret that is in no document.
func NewSecret(value string) Secret { return Secret{value: &value} }

// Given reports whether there is a text.
func (s Secret) Given() bool { return s.value != nil }

// Reveal returns the text, or an empty one.
func (s Secret) Reveal() string { return deref(s.value) }

// Literal returns what of the text stands in the document itself: the text without what is from variables.
func (s Secret) Literal() string { return deref(s.literal) }

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Size is a number of bytes.
type Size int64

var (
	secretType   = reflect.TypeFor[Secret]()
	sizeType     = reflect.TypeFor[Size]()
	durationType = reflect.TypeFor[time.Duration]()
)

// scalar is a single value before it is known what it should be.
type scalar struct {
	text    string
	literal string // without what is from variables
	kind    scalarType
	private bool
}

// scalarType is what a scalar is in YAML.
type scalarType int

const (
	isText scalarType = iota
	isNumber
	isBool
	isVariable // it has a variable in it, and can be anything
)

// show is the scalar as problems have it.
func (s scalar) show() string {
	switch {
	case s.private && s.kind == isNumber:
		return "a number"
	case s.private && s.kind == isBool:
		return "a boolean"
	case s.private:
		return "other text"
	case s.kind == isText:
		return strconv.Quote(Clip(s.text))
	default:
		return Clip(s.text)
	}
}

// subject is the scalar at the beginning of a problem.
func (s scalar) subject() string {
	if s.private {
		return "the value"
	}
	return s.show()
}

// Clip shortens a text for problems.
func Clip(text string) string {
	const most = 80
	text = withoutSecrets(text) // before one is cut
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// set stores a scalar in v, or returns what is wrong with it. The tag is v's.
func (s scalar) set(v reflect.Value, tag reflect.StructTag) (problem string) {
	switch t := v.Type(); {
	case t == durationType, t == sizeType, t.Kind() == reflect.Int:
		n, problem := s.number(t)
		if problem != "" {
			return problem
		}
		if r := tag.Get("range"); r != "" && !inRange(n, t, r) {
			return fmt.Sprintf("%s is out of range; expected %s", s.subject(), RangeWords(r))
		}
		v.SetInt(n)
	case t.Kind() == reflect.Bool:
		if s.text != "true" && s.text != "false" || s.kind == isText || s.kind == isNumber {
			return "expected true or false, got " + s.show()
		}
		v.SetBool(s.text == "true")
	case s.kind == isNumber, s.kind == isBool:
		return fmt.Sprintf("expected text, got %s; put quotes around it", s.show())
	case s.text == "":
		return isEmpty
	case t == secretType:
		v.Set(reflect.ValueOf(Secret{&s.text, &s.literal}))
	default:
		if choices := Choices(tag); len(choices) > 0 && !slices.Contains(choices, s.text) {
			if s.private {
				return "unknown value; expected " + Either(choices)
			}
			return fmt.Sprintf("unknown value %s%s", s.show(), Suggest(s.text, choices))
		}
		v.SetString(s.text)
	}
	return ""
}

// Choices are the texts that the tag oneof allows; none: all.
func Choices(tag reflect.StructTag) []string {
	return strings.FieldsFunc(tag.Get("oneof"), func(r rune) bool { return r == '|' })
}

// Numbers are decimal: 010 would be eight to some, and ten to others.
var wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9_]*)$`)

// number reads a duration, a size or an int.
func (s scalar) number(t reflect.Type) (n int64, problem string) {
	digits, isWhole := s.text, s.kind != isText && wholeNumber.MatchString(s.text)
	unit := int64(1)
	switch t {
	case durationType:
		d, err := time.ParseDuration(s.text)
		switch {
		case err == nil && s.kind != isBool && (s.kind != isNumber || d == 0):
			return int64(d), ""
		case isWhole:
			return 0, s.subject() + " has no unit; expected a duration such as 500ms, 15s or 1h30m"
		}
		return 0, "expected a duration such as 500ms, 15s or 1h30m, got " + s.show()
	case sizeType:
		for _, u := range sizeUnits {
			if before, ok := strings.CutSuffix(s.text, u.name); ok && !isWhole && s.kind != isNumber {
				digits, isWhole, unit = before, wholeNumber.MatchString(before), u.bytes
				break
			}
		}
		if !isWhole {
			return 0, "expected a size such as 64KiB or 1MiB, got " + s.show()
		}
	default:
		if !isWhole {
			return 0, "expected a whole number, got " + s.show()
		}
	}
	n, _ = strconv.ParseInt(strings.ReplaceAll(digits, "_", ""), 10, 64) // the largest number, if it is larger
	return min(n, math.MaxInt64/unit) * unit, ""
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// Bounds are those of a tag "range" of a type: least..most, or 0|least..most.
func Bounds(t reflect.Type, text string) (least, most int64, orZero bool) {
	text, orZero = strings.CutPrefix(text, "0|")
	from, to, _ := strings.Cut(text, "..")
	read := func(text string) int64 {
		n, problem := scalar{text: text, kind: isVariable}.number(t)
		if problem != "" {
			panic("strictyaml: tag " + text + ": " + problem)
		}
		return n
	}
	return read(from), read(to), orZero
}

func inRange(n int64, t reflect.Type, text string) bool {
	least, most, orZero := Bounds(t, text)
	return n >= least && n <= most || orZero && n == 0
}

// RangeWords is a tag "range" as problems have it.
func RangeWords(text string) string {
	text, orZero := strings.CutPrefix(text, "0|")
	words := strings.Replace(text, "..", " to ", 1)
	if orZero {
		return "0, or " + words
	}
	return words
}
