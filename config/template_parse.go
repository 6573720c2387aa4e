package config

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/keytext"
)

// templateParser reads one template.
type templateParser struct {
	text     string
	t        *keyTemplate
	values   contextValues
	tasks    bool // it is for tasks
	problems []string

	literal      strings.Builder // text that is no piece yet
	literalBegin int
}

// parseTemplate reads the template of a request's key, or says all that is wrong with it. It may name values of a
// context that are not among these; they have none.
func parseTemplate(text string, values contextValues) (*keyTemplate, []string) {
	p := &templateParser{text: text, t: &keyTemplate{}, values: values}
	return p.parse()
}

// parseTaskTemplate is parseTemplate for tasks, whose values are {header.NAME}, {json.PATH} and {type}.
func parseTaskTemplate(text string) (*keyTemplate, []string) {
	p := &templateParser{text: text, t: &keyTemplate{}, tasks: true}
	return p.parse()
}

func (p *templateParser) parse() (*keyTemplate, []string) {
	const longest = 4096 // many times what a key has
	if len(p.text) > longest {
		p.fail(0, "the template has %d bytes; expected at most %d", len(p.text), longest)
		return nil, p.problems
	}
	for at := 0; at < len(p.text); {
		switch c := p.text[at]; {
		case strings.HasPrefix(p.text[at:], "{{"), strings.HasPrefix(p.text[at:], "}}"):
			p.char(at, c)
			at += 2
		case c == '}':
			p.fail(at, "unexpected }; a brace itself is written }}")
			at++
		case c != '{':
			if c < 0x20 || c == 0x7f {
				p.fail(at, "control byte 0x%02x", c)
			}
			p.char(at, c)
			at++
		default:
			n := strings.IndexAny(p.text[at+1:], "{}")
			if n < 0 || p.text[at+1+n] == '{' {
				p.fail(at, "{ without }; a brace itself is written {{")
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
		p.fail(0, "the text has %d bytes; expected at most %d, as keys have", fixed, core.MaxKeyLen)
	}
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return p.t, nil
}

// fail records a mistake at a byte.
func (p *templateParser) fail(at int, format string, args ...any) {
	column := 1 + utf8.RuneCountInString(p.text[:at])
	p.problems = append(p.problems, fmt.Sprintf("character %d: %s", column, fmt.Sprintf(format, args...)))
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
		p.fail(p.literalBegin, "%% right after a value, where it would read as a part of it; put another character between them")
	}
	p.t.pieces = append(p.t.pieces, piece{text: p.literal.String()})
	p.literal.Reset()
}

// value reads what stands between the braces that begin at a byte.
func (p *templateParser) value(at int, inside string) {
	if p.literal.Len() == 0 && len(p.t.pieces) > 0 {
		p.fail(at, "two values side by side; put text between them, such as |")
	}
	p.endLiteral()
	name, modifier, modified := strings.Cut(inside, "|")
	value := piece{name: name, write: modifiers[modifier]}
	if modified && value.write == nil {
		p.fail(at+1+len(name), "unknown modifier %q; expected |int, |uuid or |sha256", "|"+modifier)
	}
	var problem string
	if value.value, problem = p.source(name); problem != "" {
		p.fail(at+1, "%s", problem)
		value.value = noValue // what follows is read as if it were right
	}
	p.t.pieces = append(p.t.pieces, value)
}

func noValue(*http.Request) (string, error) { return "", invalid("a key of another kind of call") }

// source returns what a value is taken by, or what is wrong with its name.
func (p *templateParser) source(value string) (key httplock.KeyFunc, problem string) {
	kind, name, named := strings.Cut(value, ".")
	switch {
	case p.tasks && value == "type":
		return noValue, ""
	case p.tasks && kind != "header" && kind != "json":
		return nil, fmt.Sprintf("a task has no {%s}; expected json.PATH, header.NAME or type", value)
	}
	switch kind {
	case "param", "query", "header", "json", "ctx":
		if name == "" {
			return nil, fmt.Sprintf("{%s} lacks a name; expected {%s.NAME}", value, kind)
		}
	case "method", "route", "idempotency_key":
		if named {
			return nil, fmt.Sprintf("{%s} takes no name; expected {%s}", value, kind)
		}
	}
	switch kind {
	case "method":
		return func(r *http.Request) (string, error) { return r.Method, nil }, ""
	case "route":
		return routeValue, ""
	case "idempotency_key":
		if p.text != "{"+value+"}" {
			return nil, "{idempotency_key} stands alone: it belongs to a route and a principal already, so remove the text around it"
		}
		return httplock.IdempotencyKey, ""
	case "param":
		p.t.params = addOnce(p.t.params, name)
		return httplock.Param("", name), ""
	case "query":
		return httplock.Query("", name), ""
	case "header":
		p.t.headers = addOnce(p.t.headers, textproto.CanonicalMIMEHeaderKey(name))
		key := httplock.Header("", name)
		if _, err := key(&http.Request{}); errors.Is(err, core.ErrInvalidOption) {
			return nil, reason(err) // whatever the request
		}
		return key, ""
	case "json":
		if _, err := keytext.Path(name); err != nil {
			return nil, err.Error()
		}
		return httplock.JSONField("", name), ""
	case "ctx":
		p.t.values = addOnce(p.t.values, name)
		if f := p.values[name]; f != nil {
			return httplock.Value("", name, f), ""
		}
		return noValue, ""
	}
	return nil, fmt.Sprintf("unknown value {%s}; expected param.NAME, query.NAME, header.NAME, json.PATH, ctx.NAME, method, route or idempotency_key", value)
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
	return httplock.NormalizePattern(r.Pattern), nil
}

func addOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
