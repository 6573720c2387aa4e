package keytext

import (
	"encoding/hex"
	"errors"
	"strings"
)

// Int returns the one canonical form of a whole number: 42, 042 and +42 are 42, -0 is 0. It accepts
// any number of decimal digits, with a sign or without, as strconv.ParseInt does in base 10. Its
// error does not repeat s.
func Int(s string) (string, error) {
	digits, negative := strings.CutPrefix(s, "-")
	if !negative {
		digits = strings.TrimPrefix(s, "+")
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return "", errors.New("not a whole number")
	}
	digits = strings.TrimLeft(digits, "0")
	switch {
	case digits == "":
		return "0", nil
	case negative:
		return "-" + digits, nil
	}
	return digits, nil
}

// UUID returns the one canonical form of a UUID: lower case, with four hyphens. It accepts any
// case, no hyphens, braces, and the prefix urn:uuid:, as the usual parsers do. Its error does not
// repeat s.
func UUID(s string) (string, error) {
	const urn = "urn:uuid:"
	switch {
	case len(s) > len(urn) && strings.EqualFold(s[:len(urn)], urn):
		s = s[len(urn):]
	case strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}"):
		s = s[1 : len(s)-1]
	}
	digits := s
	if len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		digits = s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	}
	bytes, err := hex.DecodeString(digits)
	if err != nil || len(bytes) != 16 {
		return "", errors.New("not a UUID")
	}
	digits = hex.EncodeToString(bytes)
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:], nil
}
