package httplock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perkey-go/perkey/core"
)

// templateParser reads one template.
type templateParser struct {
	text   string
	t      *KeyTemplate
	values map[string]func(context.Context) (string, bool) // {ctx.NAME}
	errs   []error
	tasks  bool // it is for tasks

	literal      strings.Builder // text that is no piece yet
	literalBegin int
}

func (p *templateParser) parse() {
	if p.text == "" {
		p.fail(0, "it is empty: want text like order:{param.id}")
		return
	}
	for at := 0; at < len(p.text); {
		switch c := p.text[at]; {
		case strings.HasPrefix(p.text[at:], "{{"), strings.HasPrefix(p.text[at:], "}}"):
			p.char(at, c)
			at += 2
		case c == '}':
			p.fail(at, "a } without its {: a brace itself is written }}")
			at++
		case c != '{':
			if c < 0x20 || c == 0x7f {
				p.fail(at, "control byte 0x%02x: no key has one", c)
			}
			p.char(at, c)
			at++
		default:
			n := strings.IndexAny(p.text[at+1:], "{}")
			if n < 0 || p.text[at+1+n] == '{' {
				p.fail(at, "a { without its }: a brace itself is written {{")
				at++
				continue
			}
			p.value(at, p.text[at+1:at+1+n])
			at += n + 2
		}
	}
	p.endLiteral()
	p.separate()
	fixed := 0
	for _, piece := range p.t.pieces {
		fixed += len(piece.text)
	}
	if fixed > core.MaxKeyLen {
		p.fail(0, "its text has %d bytes: a key has at most %d", fixed, core.MaxKeyLen)
	}
}

// fail records a mistake at a byte.
func (p *templateParser) fail(at int, format string, args ...any) {
	p.errs = append(p.errs, &TemplateError{
		Column:  1 + utf8.RuneCountInString(p.text[:at]),
		Problem: fmt.Sprintf(format, args...),
	})
}

func (p *templateParser) char(at int, c byte) {
	if p.literal.Len() == 0 {
		p.literalBegin = at
	}
	p.literal.WriteByte(c)
}

// endLiteral makes a piece of the text so far.
func (p *templateParser) endLiteral() {
	if p.literal.Len() == 0 {
		return
	}
	if len(p.t.pieces) > 0 && p.literal.String()[0] == '%' {
		p.fail(p.literalBegin, "%% right behind a value: it would read as a part of it, so put another character between them")
	}
	p.t.pieces = append(p.t.pieces, templatePiece{text: p.literal.String()})
	p.literal.Reset()
}

// value reads what stands between the braces that begin at a byte.
func (p *templateParser) value(at int, inside string) {
	if p.literal.Len() == 0 && len(p.t.pieces) > 0 {
		p.fail(at, "two values side by side: put text between them, such as |, that tells them apart")
	}
	p.endLiteral()
	name, modifier, modified := strings.Cut(inside, "|")
	piece := templatePiece{name: name, write: modifiers[modifier]}
	if modified && piece.write == nil {
		p.fail(at+1+len(name), "unknown modifier %q: want |int, |uuid, |sha256 or none", "|"+modifier)
	}
	var err error
	if piece.value, err = p.source(name); err != nil {
		p.fail(at+1, "%v", err)
		piece.value = failing(err) // what follows is read as if it were right
	}
	p.t.pieces = append(p.t.pieces, piece)
}

// source returns what a value is taken by.
func (p *templateParser) source(value string) (KeyFunc, error) {
	kind, name, named := strings.Cut(value, ".")
	if p.tasks {
		if value == "type" {
			return failing(invalid("{type} is a task's")), nil
		}
		if kind != "header" && kind != "json" {
			return nil, fmt.Errorf("a task has no {%s}: want json.PATH, header.NAME or type", value)
		}
	}
	switch value {
	case "method":
		return func(r *http.Request) (string, error) { return r.Method, nil }, nil
	case "route":
		return routeValue, nil
	case "idempotency_key":
		if p.text != "{"+value+"}" {
			return nil, errors.New("{idempotency_key} stands alone: it belongs to a route and a principal already, so take the text around it away")
		}
		return IdempotencyKey, nil
	}
	switch kind {
	case "param", "query", "header", "json", "ctx":
		if name == "" {
			return nil, fmt.Errorf("{%s} without a name: want {%s.NAME}", value, kind)
		}
	case "method", "route", "idempotency_key":
		if named {
			return nil, fmt.Errorf("{%s} has no name: want {%s}", value, kind)
		}
	}
	switch kind {
	case "param":
		p.t.params = addOnce(p.t.params, name)
		return Param("", name), nil
	case "query":
		return Query("", name), nil
	case "header":
		if err := keyHeader(name); err != nil {
			return nil, problemOf(err)
		}
		p.t.headers = addOnce(p.t.headers, textproto.CanonicalMIMEHeaderKey(name))
		return Header("", name), nil
	case "json":
		if _, err := jsonPath(name); err != nil {
			return nil, problemOf(err)
		}
		return JSONField("", name), nil
	case "ctx":
		f, has := p.values[name]
		switch {
		case has:
			return Value("", name, f), nil
		case len(p.values) == 0:
			return nil, fmt.Errorf("no value from the context is registered, so there is no %q: give TemplateValue", name)
		}
		return nil, fmt.Errorf("no value %q from the context is registered: there are %s", name,
			strings.Join(slices.Sorted(maps.Keys(p.values)), ", "))
	}
	return nil, fmt.Errorf("unknown value {%s}: want param.NAME, query.NAME, header.NAME, json.PATH, ctx.NAME, method, route or idempotency_key", value)
}

// separate finds what values are escaped for: the texts that tell them apart.
func (p *templateParser) separate() {
	last := -1 // the last value
	for i, piece := range p.t.pieces {
		if piece.value == nil {
			continue
		}
		if last >= 0 && i == last+2 {
			if c := p.t.pieces[last+1].text[:1]; !strings.Contains(p.t.separators, c) {
				p.t.separators += c
			}
		}
		last = i
	}
}

func routeValue(r *http.Request) (string, error) {
	if r.Pattern == "" {
		return "", invalid("{route}: the request was not matched by a route: put the guard around what is registered with " +
			"a pattern, not around the router")
	}
	return NormalizePattern(r.Pattern), nil
}

// problemOf is an error of a constructor's without what a TemplateError says anyway.
func problemOf(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "httplock: "+core.ErrInvalidOption.Error()+": "))
}

func addOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
