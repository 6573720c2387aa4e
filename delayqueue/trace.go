package delayqueue

import (
	"bytes"
	"slices"
	"strings"
)

// A trace is stored in front of its payload, and sealed with it: the scripts need not know it. It is traceMagic, its length in a byte,
// and itself. A payload that begins with traceMagic by itself has an empty trace.
const (
	traceMagic  = "\x00trace"
	traceLength = 55 // of a traceparent
)

func withTrace(trace string, payload []byte) []byte {
	if trace == "" && !bytes.HasPrefix(payload, []byte(traceMagic)) {
		return payload
	}
	return slices.Concat([]byte(traceMagic), []byte{byte(len(trace))}, []byte(trace), payload)
}

func splitTrace(stored []byte) (trace string, payload []byte) {
	rest, found := bytes.CutPrefix(stored, []byte(traceMagic))
	if !found || len(rest) == 0 || len(rest) < 1+int(rest[0]) {
		return "", stored
	}
	end := 1 + int(rest[0])
	return string(rest[1:end]), rest[end:]
}

// validTrace reports whether a text is a traceparent as W3C's Trace Context has it: version, trace id, parent id and flags in lowercase
// hexadecimal, of which the version is not ff and no id is zero.
func validTrace(s string) bool {
	if len(s) != traceLength {
		return false
	}
	parts := strings.Split(s, "-")
	if len(parts) != 4 || len(parts[0]) != 2 || len(parts[1]) != 32 || len(parts[2]) != 16 {
		return false
	}
	isHex := !strings.ContainsFunc(strings.Join(parts, ""), func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
	return isHex && parts[0] != "ff" && strings.Trim(parts[1], "0") != "" && strings.Trim(parts[2], "0") != ""
}
