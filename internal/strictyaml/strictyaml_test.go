package strictyaml_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// document has a field of each type.
type document struct {
	Text     string              `yaml:"text"`
	Word     string              `yaml:"word" oneof:"red|green|blue"`
	Flag     bool                `yaml:"flag"`
	Number   int                 `yaml:"number" range:"1..100"`
	Zero     *int                `yaml:"zero" range:"0|10..20"`
	Duration time.Duration       `yaml:"duration" range:"1ms..1h"`
	Size     strictyaml.Size     `yaml:"size" range:"1..1MiB"`
	List     []string            `yaml:"list"`
	Numbers  []int               `yaml:"numbers" range:"1..9"`
	Lists    map[string][]int    `yaml:"lists" range:"1..9"`
	Map      map[string]*section `yaml:"map"`
	Section  section             `yaml:"section"`
	Inlined  inlined             `yaml:",inline"`
	Login    login               `yaml:"login,env"`
	Keys     map[string]*section `yaml:"keys,private"`
	Shape    shape               `yaml:"shape"`

	Other int // no field of the document
}

type section struct {
	Name  string           `yaml:"name,required"`
	Count int              `yaml:"count" excludes:"total"`
	Total int              `yaml:"total"`
	Wait  *time.Duration   `yaml:"wait"`
	Inner map[string]inner `yaml:"inner"`
}

type inner struct {
	X int `yaml:"x"`
}

type inlined struct {
	In string `yaml:"in"`
}

type login struct {
	User     string            `yaml:"user"`
	Password strictyaml.Secret `yaml:"password"`
	Port     int               `yaml:"port" range:"1..65535"`
	Hosts    []string          `yaml:"hosts"`
}

// shape decodes itself: the name of a form, a list of such, or a mapping with a field form.
type shape struct{ forms []string }

func (s *shape) DecodeYAML(n strictyaml.Node) {
	if items, ok := n.Items(); ok {
		for _, item := range items {
			s.DecodeYAML(item)
		}
		return
	}
	if n.IsMapping() {
		form, ok := n.Field("form")
		if !ok {
			return
		}
		n = form
	}
	if text, ok := n.Text(); ok {
		s.forms = append(s.forms, n.Path()+"="+text)
	} else {
		n.Problem("expected a form, got %s", n.Got())
	}
}

var environment = map[string]string{"USER": "u", "PORT": "99", "EMPTY": "", "LONG": strings.Repeat("l", 100_000)}

func decode(text string) (document, []string) {
	var d document
	report, _ := strictyaml.Decode([]byte(text), &d, environment)
	var problems []string
	for _, p := range report.Problems() {
		problems = append(problems, fmt.Sprintf("%d:%d %s: %s", p.Line, p.Column, p.Path, p.Message))
	}
	return d, problems
}

func TestDecode_Values(t *testing.T) {
	t.Parallel()
	d, problems := decode(`# all of them
text: "a: b"
word: green
flag: true
number: 1_00
zero: 0
duration: 1m30s
size: 64KiB
list: [a, 'b']
numbers:
  - 1
  - 9
map:
  x: {name: n, wait: 0, inner: {i: {x: -5}}}
  "y z": {name: m, total: 3}
section: {name: s}
in: side
login: {user: "${USER}-$${x}", password: 'p${PORT}q', port: "${PORT}", hosts: ["${USER}.host", b]}
shape: [round, {form: flat}]
`)
	require.Empty(t, problems)
	zero, none := 0, time.Duration(0)
	password := d.Login.Password
	d.Login.Password = strictyaml.Secret{}
	assert.Equal(t, document{
		Text: "a: b", Word: "green", Flag: true, Number: 100, Zero: &zero, Duration: 90 * time.Second, Size: 64 << 10,
		List: []string{"a", "b"}, Numbers: []int{1, 9}, Section: section{Name: "s"}, Inlined: inlined{"side"},
		Map: map[string]*section{
			"x":   {Name: "n", Wait: &none, Inner: map[string]inner{"i": {-5}}},
			"y z": {Name: "m", Total: 3},
		},
		Login: login{User: "u-${x}", Port: 99, Hosts: []string{"u.host", "b"}},
		Shape: shape{[]string{"shape[0]=round", "shape[1].form=flat"}},
	}, d)
	assert.Equal(t, []string{"p99q", "pq"}, []string{password.Reveal(), password.Literal()})
	assert.True(t, password.Given())
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v %s", password, password, password, []any{password}), "p99q")
	assert.False(t, strictyaml.Secret{}.Given())
}

// What is wrong is told with its place, and all of it. It is long since most of it is a table.
func TestDecode_Problems(t *testing.T) {
	t.Parallel()
	const names = "; expected duration, flag, in, keys, list, lists, login, map, number, numbers, section, shape, size, text, word or zero"
	for text, want := range map[string][]string{
		"txet: a\ncolor: b":                        {`1:1 txet: unknown field; did you mean "text"?`, "2:1 color: unknown field" + names},
		"text: a\ntext: b":                         {"2:1 text: duplicate; first given in line 1"},
		"text:\nlist: ~\nword: ''":                 {"1:1 text: is empty; give it a value or leave it out", "2:1 list: is empty; give it a value or leave it out", "3:7 word: is empty; give it a value or leave it out"},
		"text: 5":                                  {"1:7 text: expected text, got 5; put quotes around it"},
		"text: [a]\nlist: a\nmap: 1":               {"1:1 text: expected a single value, got a list", "2:7 list: expected a list such as [a, b], got text", "3:6 map: expected a mapping, got a number"},
		"text: {a: b}":                             {"1:1 text: expected a single value, got a mapping; text with a colon or braces needs quotes"},
		"word: gren\nflag: yes":                    {`1:7 word: unknown value "gren"; did you mean "green"?`, `2:7 flag: expected true or false, got "yes"`},
		"word: beige":                              {`1:7 word: unknown value "beige"; expected red, green or blue`},
		"number: 101\nzero: 5":                     {"1:9 number: 101 is out of range; expected 1 to 100", "2:7 zero: 5 is out of range; expected 0, or 10 to 20"},
		"number: 010\nzero: '1'":                   {"1:9 number: expected a whole number, got 010", `2:7 zero: expected a whole number, got "1"`},
		"duration: 15\nsize: 1MB":                  {"1:11 duration: 15 has no unit; expected a duration such as 500ms, 15s or 1h30m", `2:7 size: expected a size such as 64KiB or 1MiB, got "1MB"`},
		"duration: soon\nsize: 2MiB":               {`1:11 duration: expected a duration such as 500ms, 15s or 1h30m, got "soon"`, `2:7 size: "2MiB" is out of range; expected 1 to 1MiB`},
		"size: 9999999999GiB":                      {`1:7 size: "9999999999GiB" is out of range; expected 1 to 1MiB`},
		"numbers: [1, 10, x]":                      {"1:14 numbers[1]: 10 is out of range; expected 1 to 9", `1:18 numbers[2]: expected a whole number, got "x"`},
		"section: {}\nmap: {a: {}}":                {`1:1 section: missing field "name"`, `2:7 map.a: missing field "name"`},
		"section: {naem: x}":                       {`1:11 section.naem: unknown field; did you mean "name"?`},
		"section: {name: 5}":                       {"1:17 section.name: expected text, got 5; put quotes around it"},
		"map:\n  a: {name: x, count: 1, total: 2}": {"2:23 map.a.count: excludes total; give one of the two"},
		"shape: {form: 5}":                         {"1:15 shape.form: expected a form, got 5"},
		"shape: {from: x}\nlist: [{}]":             {`1:9 shape.from: unknown field; did you mean "form"?`, "2:8 list[0]: expected a single value, got a mapping; text with a colon or braces needs quotes"},
		"shape: {other: x}":                        {`1:1 shape: missing field "form"`},
		"login: {user: '${hunter2}'}":              {"1:15 login.user: the environment variable is not set; its name is not shown, since with lower-case letters it may be a password"},
		"login: {user: '${NO}-${EMPTY}'}":          {"1:15 login.user: the environment variable NO is not set", "1:15 login.user: the environment variable EMPTY is not set"},
		"login: {user: '${a b}', password: '${'}": {
			"1:15 login.user: expected the name of an environment variable after ${, as in ${NAME}; $${ stands for the two characters",
			"1:35 login.password: expected the name of an environment variable after ${, as in ${NAME}; $${ stands for the two characters",
		},
		"text: ${USER}\nlogin: {port: hunter2}":  {"2:15 login.port: expected a whole number, got other text"},
		"login: {password hunter2}":              {"1:9 login: unknown field; expected hosts, password, port or user"},
		"login: {passwort: hunter2}":             {`1:9 login.passwort: unknown field; did you mean "password"?`},
		"login: {port: 123456, user: 5}":         {"1:15 login.port: the value is out of range; expected 1 to 65535", "1:29 login.user: expected text, got a number; put quotes around it"},
		"a":                                      {"1:1 : expected a mapping, got text"},
		"":                                       {"0:0 : is empty"},
		"# c":                                    {"0:0 : is empty"},
		"---\ntext: a\n---\ntext: b":             {"4:1 : expected one YAML document, got another"},
		"text: [1":                               {"1:7 : is not valid YAML: sequence end token ']' not found"},
		"shape: {form: order:{a}}":               {"1:21 : is not valid YAML: ',' or '}' must be specified; text with a colon or braces needs quotes, as in {\"POST /orders/:id\": pay}"},
		strings.Repeat("n", 513) + ": 1":         {"1:1 : the name has 513 bytes; expected at most 512"},
		strings.Repeat("n", 512) + ": 1":         {`1:1 "` + strings.Repeat("n", 80) + `…": unknown field` + names},
		"text: |hunter2":                         {"1:7 : is not valid YAML: invalid header option: …"},
		"map:\n\ta: 1":                           {"2:1 : the line is indented with a tab; YAML takes spaces"},
		"map:\n  a:\n  \tname: 1":                {"3:3 : the line is indented with a tab; YAML takes spaces"},
		"text: a\x00":                            {`1:8 : control character '\x00'`},
		"text: |" + strings.Repeat("\n", 60):     {"51:1 : more than 50 empty lines in a row"},
		"login: {user: '${LONG}${LONG}${LONG}'}": {"1:15 login.user: is larger than 262144 bytes with its environment variables"},
		"text: \xff":                             {"1:7 : is not UTF-8 text"},
		"\xff\xfet\x00":                          {"0:0 : is UTF-16; save it as UTF-8"},
		"a: &x 1\nb: *x\nc: {<<: *x}\nd: !!str e": {
			"1:4 : anchors and aliases are not supported; repeat the value", "2:4 : anchors and aliases are not supported; repeat the value",
			"3:5 : merge keys are not supported; write out what is merged", "3:9 : anchors and aliases are not supported; repeat the value",
			"4:4 : tags are not supported; remove it",
		},
		"? a\n: b":         {"1:1 : keys that begin with ? are not supported; write NAME: VALUE"},
		"%YAML 1.2\n---\n": {"1:1 : directives are not supported; remove it"},
		"[a]: b":           {"1:4 : is not valid YAML: found an invalid key for this map; text with a colon or braces needs quotes, as in {\"POST /orders/:id\": pay}"},
	} {
		_, problems := decode(text)
		assert.Equal(t, want, problems, "%q", text)
	}
}

// However lines end, problems name the line that an editor shows.
func TestDecode_LineEndings(t *testing.T) {
	t.Parallel()
	const text = "# c\n\ntext: 'a\n\n  b'\nlist:\n  - x\n  - [y]\nsection:\n  naem: |\n    x\n    y\n\nnumber: x\n"
	good, want := decode(text)
	require.Len(t, want, 3)
	assert.Equal(t, []string{
		"8:5 list[1]: expected a single value, got a list", `10:3 section.naem: unknown field; did you mean "name"?`,
		`14:9 number: expected a whole number, got "x"`,
	}, want)
	for _, end := range []string{"\r\n", "\r"} {
		for _, bom := range []string{"", "\ufeff"} {
			d, problems := decode(bom + strings.ReplaceAll(text, "\n", end))
			assert.Equal(t, want, problems, "%q", end)
			assert.Equal(t, good, d)
		}
	}
	_, problems := decode("\ufefftxt: 1")
	assert.Equal(t, []string{`1:1 txt: unknown field; did you mean "text"?`}, problems)
	_, problems = decode("text: a\r\n\tb: c\r\n")
	assert.Equal(t, []string{"2:1 : the line is indented with a tab; YAML takes spaces"}, problems)
}

// A caller adds what it finds itself, in the order of the document.
func TestReport_Order(t *testing.T) {
	t.Parallel()
	var d document
	found, ok := strictyaml.Decode([]byte("list: [a]\nmap: {x: {name: n}}"), &d, nil)
	require.True(t, ok)
	r := strictyaml.NewReport(found.Places())
	r.At(strictyaml.Item("list", 3), "no such item")
	r.At(strictyaml.Member("map.x", "a b"), "nothing")
	r.At("other", "nowhere")
	r.At("list[0]", "first %d", 1)
	r.At("list[0]", "first %d", 1)
	assert.True(t, r.Failed("list"))
	assert.True(t, r.Failed("map.x"))
	assert.False(t, r.Failed("lis"))
	place := func(line, column int) strictyaml.Place { return strictyaml.Place{Line: line, Column: column} }
	assert.Equal(t, []strictyaml.Problem{
		{Place: place(1, 1), Path: "list[3]", Message: "no such item"},
		{Place: place(1, 1), Path: "other", Message: "nowhere"},
		{Place: place(1, 8), Path: "list[0]", Message: "first 1"},
		{Place: place(2, 7), Path: `map.x."a b"`, Message: "nothing"},
	}, r.Problems())
}

func TestReport_AddIsBounded(t *testing.T) {
	t.Parallel()
	one, other := strictyaml.NewReport(nil), strictyaml.NewReport(nil)
	for n := range 40 {
		one.At("", "one %d", n)
		other.At("", "other %d", n)
	}
	one.Add(other)
	problems := one.Problems()
	require.Len(t, problems, 51)
	assert.Equal(t, "other 9", problems[49].Message)
	assert.Equal(t, "there may be more problems: these are the first 50", problems[50].Message)
}

func TestReport_LeavesSecretsOut(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=":        "…",
		"key MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE= of": "key … of",
		"AbCdEfGhIjKlMnOpQrStUvWxYz+/AbCdEfGhIjKlMnOpQ":       "…",
		"base64:T0/+2eWqUUa0VYKpVKXJ4w==":                     "base64:…",
		"00112233445566778899aabbccddeeff":                    "…",
		"redis://u:p@ss w@h:1/0":                              "redis://…@h:1/0",
		"POST /api/v1/organizations/{organizationId}/members": "POST /api/v1/organizations/{organizationId}/members",
		"email:SendWelcomeMessageToNewUser":                   "email:SendWelcomeMessageToNewUser",
		"max_waiters_per_principal":                           "max_waiters_per_principal",
	} {
		r := strictyaml.NewReport(nil)
		r.At(text, "got %q", text)
		assert.Equal(t, []strictyaml.Problem{{Path: want, Message: fmt.Sprintf("got %q", want)}}, r.Problems())
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"retry", "reject", "delay", "decorrelated"}
	for name, want := range map[string]string{
		"rety": "retry", "RETRY": "retry", "rtery": "retry", "dealy": "delay", "decorelatd": "decorrelated", "polite": "", "": "", "x": "",
		strings.Repeat("retry", 20): "",
	} {
		assert.Equal(t, want, strictyaml.Nearest(name, known), name)
	}
	assert.Empty(t, strictyaml.Nearest("x", nil))
	assert.Equal(t, "; there are none", strictyaml.Suggest("x", nil))
	assert.Len(t, strings.Split(strictyaml.Either(strings.Fields(strings.Repeat("n ", 100))), ","), 40)
}

// Whatever a document says, Decode tells what is wrong with it or stores it, and does the same however its lines end.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		"text: a\nlist: [b, 'c']\nmap:\n  d: {name: e}\n", "a: |\n x\n\n y\n", "login: {user: '${USER}'}", "shape: [a, {form: b}]", "? [a]\n: b",
		"- - !t &a *b\n- {c: [d, {e: f}]}", "\"\\u0041\": 'x''y'\n", "text: >-\n  a\n  b\n", "%YAML 1.2\n---\n...\n", "text: a: b", "{text: [", "\ttext: a",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var d, other document
		r, ok := strictyaml.Decode(data, &d, environment)
		problems := r.Problems()
		require.True(t, ok || len(problems) > 0)
		for _, p := range problems {
			require.NotEmpty(t, p.Message)
			require.Equal(t, p.Line == 0, p.Column == 0, "%v", p)
		}
		if strings.Contains(string(data), "\r") {
			return
		}
		r, _ = strictyaml.Decode([]byte(strings.ReplaceAll(string(data), "\n", "\r\n")), &other, environment)
		require.Equal(t, problems, r.Problems())
		d.Login.Password, other.Login.Password = strictyaml.Secret{}, strictyaml.Secret{}
		require.Equal(t, d, other)
	})
}
