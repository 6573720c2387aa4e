package terminal

import "strings"

// Style is a parameter of SGR.
type Style string

// The styles, for a dark background and a light one.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Pink   Style = "35"
	Blue   Style = "36"
)

// Of has a text in the style.
func (s Style) Of(text string) string {
	if s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[m"
}

// Printable is a text that draws nothing else, with question marks for what is not printable ASCII: then a byte is a column.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// Pad adds spaces to a line up to so many columns.
func Pad(line string, columns int) string {
	return line + strings.Repeat(" ", max(0, columns-width(line)))
}

// Fit is a line with as many of the further parts as there is room for.
func Fit(columns int, line string, parts ...string) string {
	for _, part := range parts {
		if width(line)+width(part) > columns {
			break
		}
		line += part
	}
	return line
}

// Text is lines without styles, cut off after so many columns.
func Text(lines []string, columns int) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(bare(clip(l, columns)) + "\n")
	}
	return b.String()
}

// styleAt is the length of the style at a place of a line; zero: it is text.
func styleAt(line string, at int) int {
	if line[at] != '\x1b' {
		return 0
	}
	return strings.IndexByte(line[at:], 'm') + 1
}

// bare is a line without its styles.
func bare(line string) string {
	var b strings.Builder
	for at := 0; at < len(line); at++ {
		if n := styleAt(line, at); n > 0 {
			at += n - 1
		} else {
			b.WriteByte(line[at])
		}
	}
	return b.String()
}

func width(line string) int { return len(bare(line)) }

// clip cuts a line off after so many columns.
func clip(line string, columns int) string {
	for at := 0; at < len(line); at++ {
		if n := styleAt(line, at); n > 0 {
			at += n - 1
		} else if columns--; columns < 0 {
			return line[:at] + "\x1b[m"
		}
	}
	return line
}
