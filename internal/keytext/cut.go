package keytext

import (
	"strings"
	"unicode/utf8"
)

// Cut is the beginning of a text as valid UTF-8, of at most so many bytes.
func Cut(s string, most int) string {
	if len(s) > most {
		end := most
		for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end]
	}
	s = strings.ToValidUTF8(s, "\uFFFD") // which can be longer
	for len(s) > most {
		_, last := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-last]
	}
	return s
}
