package strictyaml

import (
	"bytes"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// MaxSize is the most bytes that a document can have.
	MaxSize = 256 << 10
	// maxTokens bounds the parser's memory, which grows with the square of the entries of a mapping: 64 MB here.
	maxTokens = 8000
	// maxDepth bounds the parser's time, which grows with its cube.
	maxDepth = 32
	// maxEmptyLines bounds the lexer's memory: it copies the whole rest of a run of empty lines for each of them.
	maxEmptyLines = 50
	// maxTabs bounds the lexer's time: between double quotes it looks through the rest of the line for each tab.
	maxTabs = 100
	// maxName bounds the paths of values, of which the parser has one for each: the names of all mappings around it.
	maxName = 512
)

// parse returns the one document in data.
func parse(r *Report, data []byte) (body ast.Node, ok bool) {
	if len(data) > MaxSize {
		r.In(Place{}, "", "is larger than %d bytes", MaxSize)
		return nil, false
	}
	text, where, problem := clean(data)
	if problem != "" {
		r.In(where, "", "%s", problem)
		return nil, false
	}
	tree, err := parseText(r, text)
	if r.Failed("") {
		return nil, false
	}
	if err != nil {
		syntax, isSyntax := errors.AsType[yaml.Error](err)
		if !isSyntax {
			r.In(Place{}, "", "is not valid YAML")
			return nil, false
		}
		where = placeOf(syntax)
		r.In(where, "", "%s", syntaxProblem(text, where, syntax.GetMessage()))
		return nil, false
	}
	for _, doc := range tree.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			r.In(startOf(doc.Body), "", "expected one YAML document, got another")
			return nil, false
		}
		body = doc.Body
	}
	if body == nil || body.Type() == ast.CommentType || body.Type() == ast.NullType {
		r.In(Place{}, "", "is empty")
		return nil, false
	}
	return body, true
}

// clean returns data as text, with lines that end as the lexer counts them, or what no YAML has in it.
func clean(data []byte) (text string, where Place, problem string) {
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return "", Place{}, "is UTF-16; save it as UTF-8"
	}
	text = strings.TrimPrefix(string(data), "\ufeff")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	line, column, empty, tabs := 1, 1, 0, 0
	for i, c := range text {
		switch {
		case c == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd"):
			return "", Place{line, column}, "is not UTF-8 text"
		case c != '\n' && c != '\t' && (c < ' ' || c == 0x7f):
			return "", Place{line, column}, "control character " + strconv.QuoteRune(c)
		case c == '\n':
			if empty++; empty > maxEmptyLines {
				return "", Place{line, 1}, "more than " + strconv.Itoa(maxEmptyLines) + " empty lines in a row"
			}
			line, column, tabs = line+1, 1, 0
			continue
		case c == '\t':
			if tabs++; tabs > maxTabs {
				return "", Place{line, column}, "more than " + strconv.Itoa(maxTabs) + " tabs in a line"
			}
		case c != ' ':
			empty = 0
		}
		column++
	}
	return text, Place{}, ""
}

// parseText is the parser. It must not crash the process, whatever the text, nor take long. Where it is not even asked, r
// has the reason.
func parseText(r *Report, text string) (tree *ast.File, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the parser failed")
		}
	}()
	tokens := lexer.Tokenize(text)
	if check(r, tokens); r.Failed("") {
		return nil, nil
	}
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // each is reported later, with its path
}

var unsupported = map[token.Type]string{
	token.AnchorType:     "anchors and aliases are not supported; repeat the value",
	token.AliasType:      "anchors and aliases are not supported; repeat the value",
	token.TagType:        "tags are not supported; remove it",
	token.MergeKeyType:   "merge keys are not supported; write out what is merged",
	token.MappingKeyType: "keys that begin with ? are not supported; write NAME: VALUE",
	token.DirectiveType:  "directives are not supported; remove it",
}

// check reports tokens that are not supported, and what the parser would take too long for.
func check(r *Report, tokens token.Tokens) {
	flow := 0        // brackets and braces that are open
	var blocks []int // the columns of the blocks that are open
	line, count := 0, 0
	var name *token.Token // before a colon
	for _, t := range tokens {
		at := Place{t.Position.Line, t.Position.Column}
		switch t.Type {
		case token.CommentType:
			continue
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.MappingValueType:
			if name != nil && len(name.Value) > maxName {
				r.In(Place{name.Position.Line, name.Position.Column}, "", "the name has %d bytes; expected at most %d", len(name.Value), maxName)
			}
		}
		name = t
		if problem, ok := unsupported[t.Type]; ok {
			r.In(at, "", "%s", problem)
		}
		if flow == 0 && (at.Line > line || t.Type == token.SequenceEntryType) {
			for len(blocks) > 0 && blocks[len(blocks)-1] > at.Column {
				blocks = blocks[:len(blocks)-1]
			}
			if len(blocks) == 0 || blocks[len(blocks)-1] < at.Column {
				blocks = append(blocks, at.Column)
			}
		}
		line = at.Line
		if flow+len(blocks) > maxDepth {
			r.In(at, "", "is nested more than %d levels deep", maxDepth)
			return
		}
		if count++; count > maxTokens {
			r.In(at, "", "is too long: more than %d names, values and punctuation marks", maxTokens)
			return
		}
	}
}

// quotation is what the parser repeats of the document.
var quotation = regexp.MustCompile(`"(\\.|[^"\\])*"`)

func syntaxProblem(text string, where Place, message string) string {
	if lines := strings.Split(text, "\n"); where.Line >= 1 && where.Line <= len(lines) {
		line := lines[where.Line-1]
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; strings.Contains(indent, "\t") {
			return "the line is indented with a tab; YAML takes spaces"
		}
	}
	problem := "is not valid YAML: " + quotation.ReplaceAllString(printable(message), "…")
	for _, unquoted := range []string{"'}' must be specified", "']' must be specified", "invalid key for this map"} {
		if strings.Contains(message, unquoted) {
			return problem + `; text with a colon or braces needs quotes, as in {"POST /orders/:id": pay}`
		}
	}
	return problem
}

// printable writes control characters as Go does.
func printable(text string) string {
	var b strings.Builder
	for _, c := range text {
		if quoted := strconv.QuoteRune(c); strconv.IsPrint(c) {
			b.WriteRune(c)
		} else {
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

func placeOf(n interface{ GetToken() *token.Token }) Place {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return Place{t.Position.Line, t.Position.Column}
	}
	return Place{}
}

// startOf is where a node begins. The parser has a block mapping begin at its first colon.
func startOf(n ast.Node) Place {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return placeOf(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return placeOf(n.Key)
	}
	return placeOf(n)
}
