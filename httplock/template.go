package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/keytext"
)

// KeyTemplate makes keys by a line of text, such as "order:{param.id}". It is safe
// for concurrent use. The zero KeyTemplate, and a nil one, refuse every request with 500.
type KeyTemplate struct {
	text       string
	pieces     []templatePiece
	separators string // the bytes that values must not have: escape
	params     []string
	headers    []string
}

// templatePiece is a value, or the text between two of them.
type templatePiece struct {
	text  string
	value KeyFunc                      // nil: it is text
	name  string                       // between its braces, without the modifier
	write func(string) (string, error) // the modifier; nil: none
}

// modifiers are what may stand behind a name, after a bar.
var modifiers = map[string]func(string) (string, error){
	"sha256": func(s string) (string, error) { return keytext.Digest(s), nil },
	"int":    keytext.Int,
	"uuid":   keytext.UUID,
}

// TemplateOption adds to what a template may name.
type TemplateOption func(*templateParser) error

// TemplateValue lets a template take the value {ctx.name} from the request's context,
// as Value does.
func TemplateValue(name string, f func(context.Context) (string, bool)) TemplateOption {
	return func(p *templateParser) error {
		if name == "" || f == nil || strings.ContainsAny(name, "{}|") {
			return invalid("TemplateValue(%q): want a name without braces and bars, and a function", name)
		}
		if _, twice := p.values[name]; twice {
			return invalid("TemplateValue(%q): it is there twice", name)
		}
		p.values[name] = f
		return nil
	}
}

// ForTasks makes it a template of tasks, not of requests, for [KeyTemplate.KeyOf]: its values are {header.NAME},
// {json.PATH} and {type}.
func ForTasks() TemplateOption {
	return func(p *templateParser) error {
		p.tasks = true
		return nil
	}
}

// Template returns the KeyFunc of a line of text: ParseTemplate says what it means.
func Template(text string, opts ...TemplateOption) (KeyFunc, error) {
	t, err := ParseTemplate(text, opts...)
	if err != nil {
		return nil, err
	}
	return t.Key, nil
}

// ParseTemplate reads a template: text, with values in braces.
//
//	order:{param.id}                order:42
//	{header.X-Tenant}|{query.q}     7|shoes
//	mail:{json.user.email|sha256}   mail:b4c9a289323b…
//
// The values are
//
//	{param.NAME}     a path parameter, as Param takes it
//	{query.NAME}     a query parameter, as Query takes it
//	{header.NAME}    a header, as Header takes it
//	{json.PATH}      a field of the JSON body, as JSONField takes it
//	{ctx.NAME}       what a TemplateValue of that name finds
//	{method}         the request's method
//	{route}          the route's pattern, as NormalizePattern writes it
//
// and {idempotency_key}, all by itself, is IdempotencyKey. Behind a name there may be one of
//
//	{param.id|int}      a whole number, written in one way: 42, 042 and +42 are 42, as ParamInt takes it
//	{param.id|uuid}     a UUID, written in one way, as ParamUUID takes it
//	{param.id|sha256}   the hex digits of the value's SHA-256, for values that are long, or not to be read in Redis
//
// "{{" and "}}" are braces. A request without one of the values, or with one that is no number or no
// UUID where that is wanted, is refused, as the constructors of these names say.
//
// A template with one value takes it as it is: it makes the same keys as Param and the
// others do. With several, different values never make the same key: there is text
// between any two, and in each value the first byte of those texts, and "%", become
// %XX. So "{header.A}|{param.b}" makes the keys of Join.
//
// All mistakes are found here. Each is a *TemplateError, and if there are several the
// error wraps them all.
func ParseTemplate(text string, opts ...TemplateOption) (*KeyTemplate, error) {
	p := &templateParser{text: text, t: &KeyTemplate{text: text}, values: map[string]func(context.Context) (string, bool){}}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalid("Template: an option is nil")
		}
		if err := opt(p); err != nil {
			return nil, err
		}
	}
	p.parse()
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return p.t, nil
}

// Key returns the key of a request. It is a KeyFunc.
func (t *KeyTemplate) Key(r *http.Request) (string, error) {
	return t.key(func(piece templatePiece) (string, error) { return piece.value(r) })
}

// KeyOf returns the key of what is no request: value returns the value of a name, such as json.user.id. Its errors
// are KeyOf's.
func (t *KeyTemplate) KeyOf(value func(name string) (string, error)) (string, error) {
	return t.key(func(piece templatePiece) (string, error) { return value(piece.name) })
}

func (t *KeyTemplate) key(value func(templatePiece) (string, error)) (string, error) {
	if t == nil || len(t.pieces) == 0 {
		return "", invalid("a KeyTemplate that ParseTemplate did not make")
	}
	var b strings.Builder
	for _, piece := range t.pieces {
		if piece.value == nil {
			b.WriteString(piece.text)
			continue
		}
		v, err := value(piece)
		if err != nil {
			return "", err
		}
		if piece.write != nil {
			if v, err = piece.write(v); err != nil {
				return "", fmt.Errorf("httplock: %w: {%s}: %w", core.ErrInvalidKey, piece.name, err)
			}
		}
		if t.separators == "" {
			b.WriteString(v)
		} else {
			keytext.Escape(&b, v, t.separators)
		}
	}
	return b.String(), nil
}

// Fixed reports whether the template has no value, so that its key is always the same.
func (t *KeyTemplate) Fixed() bool {
	return !slices.ContainsFunc(t.pieces, func(piece templatePiece) bool { return piece.value != nil })
}

// Params returns the names of the path parameters that the template takes, each once:
// PatternParams tells whether a route has them.
func (t *KeyTemplate) Params() []string { return slices.Clone(t.params) }

// Headers returns the names of the headers that the template takes, each once, in
// canonical form. A route that parks gives them to AllowHeaders.
func (t *KeyTemplate) Headers() []string { return slices.Clone(t.headers) }

// String returns the text.
func (t *KeyTemplate) String() string { return t.text }

// TemplateError is a mistake in a template. It wraps core.ErrInvalidOption.
type TemplateError struct {
	// Column is where the mistake is, in characters from 1.
	Column int
	// Problem is what is wrong, and what would be right.
	Problem string
}

func (e *TemplateError) Error() string {
	return fmt.Sprintf("httplock: %v: key template, column %d: %s", core.ErrInvalidOption, e.Column, e.Problem)
}

// Unwrap returns core.ErrInvalidOption.
func (e *TemplateError) Unwrap() error { return core.ErrInvalidOption }
