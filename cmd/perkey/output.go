package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v3"
)

// quote shows a text: as it is if it has printable characters alone and no space, else as Go quotes it. What it returns
// does nothing to a terminal.
func quote(s string) string {
	if s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r) || r == ' ' || r == '"' || r == '\\'
	}) {
		return s
	}
	return strconv.Quote(s)
}

// printable is a message of several lines without control characters.
func printable(s string) string {
	var b strings.Builder
	for i, r := range s {
		if r == '\n' || unicode.IsPrint(r) && (r != utf8.RuneError || strings.HasPrefix(s[i:], "\uFFFD")) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.Quote(s[i : i+max(1, sizeOf(r, s[i:]))])
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// oneLine is printable, in one line: what it shows cannot pass for another line of the output.
func oneLine(s string) string { return strings.ReplaceAll(printable(s), "\n", `\n`) }

func sizeOf(r rune, rest string) int {
	_, n := utf8.DecodeRuneInString(rest)
	if r == utf8.RuneError {
		return n
	}
	return utf8.RuneLen(r)
}

// shell is a lock key as a shell takes it, with the option that it needs.
func shell(key string) string {
	switch {
	case !strings.ContainsFunc(key, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_./:@%+=,-", r)
	}) && !strings.HasPrefix(key, "-"):
		return key
	case quote(key) == key && !strings.Contains(key, "'") && !strings.HasPrefix(key, "-"):
		return "'" + key + "'"
	}
	return "-q '" + strings.ReplaceAll(strconv.Quote(key), "'", `\x27`) + "'"
}

// unquoted is the inverse of quote, with -q.
func unquoted(c *cli.Command, arg string) (string, error) {
	if !c.Bool(flagQuoted) {
		return arg, nil
	}
	s, err := unquotedText(arg)
	if err != nil {
		return "", usagef("-q: %s is not a string in quotation marks, as Go writes it", strconv.Quote(arg))
	}
	return s, nil
}

func unquotedText(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	return strconv.Unquote(s)
}

// span shows a time span in its largest unit or two.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// ago shows a time as how long ago it is; what is not known is "-".
func ago(at, now time.Time) string {
	switch {
	case at.IsZero():
		return "-"
	case at.After(now):
		return "in " + span(at.Sub(now))
	}
	return span(now.Sub(at)) + " ago"
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// printf writes text for people. What is not a constant of the program was quoted before.
func (t *tool) printf(format string, args ...any) { _, _ = fmt.Fprintf(t.out, format, args...) }

// field writes a name, and a text beside it.
func (t *tool) field(name, format string, args ...any) {
	t.printf("%-9s %s\n", name, fmt.Sprintf(format, args...))
}

// row is a line of a table.
type row []string

// table writes rows whose columns but the last are as wide as their widest. Those of right are numbers.
func (t *tool) table(head row, rows []row, right ...int) {
	all := append([]row{head}, rows...)
	widths := make([]int, len(head))
	for _, r := range all {
		for i, text := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, r := range all {
		var b strings.Builder
		for i, text := range r {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if slices.Contains(right, i) {
				text, pad = pad+text, ""
			}
			if b.WriteString(text); i < len(r)-1 {
				b.WriteString(pad + "  ")
			}
		}
		t.printf("%s\n", strings.TrimRight(b.String(), " "))
	}
}

func isJSON(c *cli.Command) bool { return c.String(flagOutput) == "json" }

// json writes a value, in one line. What is not printable is escaped.
func (t *tool) json(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	var line strings.Builder
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if unicode.IsPrint(r) {
			line.WriteRune(r)
			continue
		}
		for _, half := range utf16Of(r) {
			fmt.Fprintf(&line, `\u%04x`, half)
		}
	}
	t.printf("%s\n", line.String())
	return nil
}

func utf16Of(r rune) []rune {
	if r < 0x10000 {
		return []rune{r}
	}
	r -= 0x10000
	return []rune{0xd800 + r>>10, 0xdc00 + r&0x3ff}
}

// keyJSON is a lock key, and its bytes if they are no text.
type keyJSON struct {
	Key    string `json:"key"`
	Base64 string `json:"key_base64,omitempty"`
}

func keyOf(key string) keyJSON {
	k := keyJSON{Key: key}
	if !utf8.ValidString(key) {
		k.Base64 = base64.StdEncoding.EncodeToString([]byte(key))
	}
	return k
}

// timeJSON leaves out what is not known.
func timeJSON(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	return &at
}
