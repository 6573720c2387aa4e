package config

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/keytext"
)

// keyTemplate makes keys by a line of text with values in braces, such as "order:{param.id}": docs/config.md says what
// it means. It is safe for concurrent use.
//
// A template with one value takes it as it is: it makes the same keys as httplock.Param and the
// others do. With several, different values never make the same key: there is text
// between any two, and in each value the first byte of those texts, and "%", become
// %XX. So "{header.A}|{param.b}" makes the keys of httplock.Join.
type keyTemplate struct {
	pieces     []piece
	separators string // the bytes that values must not have: escape

	// What it reads, each name once: path parameters, headers in canonical form, and values of a context.
	params, headers, values []string
}

// piece is a value of a template, or the text between two of them.
type piece struct {
	text  string
	value httplock.KeyFunc             // nil: it is text
	name  string                       // between its braces, without the modifier
	write func(string) (string, error) // the modifier; nil: none
}

// modifiers are what may stand behind a name, after a bar.
var modifiers = map[string]func(string) (string, error){
	"sha256": func(s string) (string, error) { return keytext.Digest(s), nil },
	"int":    keytext.Int,
	"uuid":   keytext.UUID,
}

// contextValues are what {ctx.NAME} stands for.
type contextValues map[string]func(context.Context) (string, bool)

// key returns the key of a request. It is a KeyFunc.
func (t *keyTemplate) key(r *http.Request) (string, error) {
	return t.build(func(p piece) (string, error) { return p.value(r) })
}

// taskKey returns the key of a task: value returns what a name such as json.user.id stands for. Its errors
// are taskKey's.
func (t *keyTemplate) taskKey(value func(name string) (string, error)) (string, error) {
	return t.build(func(p piece) (string, error) { return value(p.name) })
}

func (t *keyTemplate) build(value func(piece) (string, error)) (string, error) {
	var b strings.Builder
	for _, p := range t.pieces {
		if p.value == nil {
			b.WriteString(p.text)
			continue
		}
		v, err := value(p)
		if err != nil {
			return "", err
		}
		if p.write != nil {
			if v, err = p.write(v); err != nil {
				return "", fmt.Errorf("config: %w: {%s}: %w", core.ErrInvalidKey, p.name, err)
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

// fixed reports whether the template has no value, so that its key is always the same.
func (t *keyTemplate) fixed() bool {
	return !slices.ContainsFunc(t.pieces, func(p piece) bool { return p.value != nil })
}
