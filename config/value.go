package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// secret is a text that nothing shows.
type secret struct {
	text  *string // behind a pointer: package fmt would print it
	plain bool    // it stands in the file as it is
}

func (s secret) given() bool { return s.text != nil }

func (s secret) reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// size is a number of bytes.
type size int64

var (
	secretType   = reflect.TypeFor[secret]()
	sizeType     = reflect.TypeFor[size]()
	durationType = reflect.TypeFor[time.Duration]()
)

// scalar is a value before it is known what it should be.
type scalar struct {
	text   string
	kind   kind
	hidden bool // no message shows it
	plain  bool // it stands in the file as it is
}

// kind is what a scalar is in YAML.
type kind int

const (
	isString kind = iota
	isNumber
	isBool
	isText // of a variable, which has no kind
)

// show is the scalar as messages have it.
func (s scalar) show() string {
	switch {
	case s.hidden:
		return "the value"
	case s.kind == isString || s.kind == isText:
		return strconv.Quote(clip(s.text))
	default:
		return clip(s.text)
	}
}

// clip keeps messages short.
func clip(text string) string {
	const most = 80
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// set stores a scalar in v, or returns what is wrong with it. The tag is v's.
func (s scalar) set(v reflect.Value, tag reflect.StructTag) error {
	want := tag.Get("want")
	switch t := v.Type(); {
	case t == secretType:
		if s.kind != isString && s.kind != isText {
			return errors.New("the value is no string; want quotes around it")
		}
		if s.text == "" {
			return errors.New("is empty; leave it out, or give it a value")
		}
		v.Set(reflect.ValueOf(secret{&s.text, s.plain}))
	case t == durationType, t == sizeType, t.Kind() == reflect.Int:
		n, err := s.number(t)
		if err != nil {
			return err
		}
		if !inRange(n, t, want) {
			return fmt.Errorf("%s is out of range; want %s", s.show(), inWords(want))
		}
		v.SetInt(n)
	case t.Kind() == reflect.Bool:
		if s.text != "true" && s.text != "false" || s.kind == isString || s.kind == isNumber {
			return fmt.Errorf("%s is neither true nor false", s.show())
		}
		v.SetBool(s.text == "true")
	case t.Kind() == reflect.String:
		if s.kind != isString && s.kind != isText {
			return fmt.Errorf("%s is no string; want quotes around it", s.show())
		}
		if s.text == "" {
			return errors.New("is empty; leave it out, or give it a value")
		}
		if choices := strings.Split(want, "|"); want != "" && !slices.Contains(choices, s.text) {
			if s.hidden {
				return fmt.Errorf("the value is unknown; want %s", either(choices))
			}
			return fmt.Errorf("%s is unknown%s", s.show(), suggest(s.text, choices))
		}
		v.SetString(s.text)
	}
	return nil
}

// Numbers are decimal: 010 would be eight to some, and ten to others.
var wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9_]*)$`)

func (s scalar) number(t reflect.Type) (int64, error) {
	isWhole := (s.kind == isNumber || s.kind == isText) && wholeNumber.MatchString(s.text)
	digits := strings.ReplaceAll(s.text, "_", "")
	switch t {
	case durationType:
		d, err := time.ParseDuration(s.text)
		switch {
		case err == nil && s.kind != isBool && (s.kind != isNumber || d == 0):
			return int64(d), nil
		case isWhole:
			return 0, fmt.Errorf("%s has no unit; want a duration such as 500ms, 15s or 1h30m", s.show())
		default:
			return 0, fmt.Errorf("%s is no duration; want one such as 500ms, 15s or 1h30m", s.show())
		}
	case sizeType:
		unit := int64(1)
		if !isWhole && (s.kind == isString || s.kind == isText) {
			for _, u := range sizeUnits {
				if before, ok := strings.CutSuffix(s.text, u.name); ok && wholeNumber.MatchString(before) {
					isWhole, unit, digits = true, u.bytes, strings.ReplaceAll(before, "_", "")
					break
				}
			}
		}
		if !isWhole {
			return 0, fmt.Errorf("%s is no size; want bytes, or one such as 64KiB or 1MiB", s.show())
		}
		n, _ := strconv.ParseInt(digits, 10, 64) // the largest number, if it is larger
		if n > math.MaxInt64/unit {
			n = math.MaxInt64 / unit
		}
		return n * unit, nil
	default:
		if !isWhole {
			return 0, fmt.Errorf("%s is no whole number", s.show())
		}
		n, _ := strconv.ParseInt(digits, 10, 64)
		return n, nil
	}
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// bounds are a range of a tag "want": least..most, or 0|least..most.
func bounds(t reflect.Type, want string) (least, most int64, orZero bool) {
	want, orZero = cutZero(want)
	from, to, _ := strings.Cut(want, "..")
	read := func(text string) int64 {
		n, err := scalar{text: text, kind: isText}.number(t)
		if err != nil {
			panic("config: tag " + want + ": " + err.Error()) // a test reads all tags
		}
		return n
	}
	return read(from), read(to), orZero
}

func cutZero(want string) (string, bool) {
	after, ok := strings.CutPrefix(want, "0|")
	return after, ok
}

func inRange(n int64, t reflect.Type, want string) bool {
	least, most, orZero := bounds(t, want)
	return n >= least && n <= most || orZero && n == 0
}

// inWords is a range as messages have it.
func inWords(want string) string {
	want, orZero := cutZero(want)
	words := strings.Replace(want, "..", " to ", 1)
	if orZero {
		words = "0, or " + words
	}
	return words
}
