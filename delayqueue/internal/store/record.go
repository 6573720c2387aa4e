package store

import (
	"strconv"
	"strings"
	"time"

	"github.com/perkey-go/perkey/internal/unixms"
)

// Records of messages, in the formats that common.lua describes. The scripts decide about what
// they read. Go only reads: what cannot be read counts as absent.

const (
	recordHeader = 54 // bytes before the key in a record

	flagCoalesces, flagParkedCoalesces, flagGiven = 'c', 'q', '='
)

// record is a message as it was stored.
type record struct {
	key, name, principal, payload string
	enqueued, notAfter            int64 // ms
	long                          bool  // the payload is elsewhere
	longSize                      int   // of that
	given                         bool  // the caller gave its id
	seq                           string
}

// About is the part of a record that identifies what coalesces: the lengths, key, name and
// principal.
func About(key, name, principal string) string {
	b := make([]byte, 0, lengthsLen+len(key)+len(name)+len(principal))
	b = appendLengths(b, key, name, principal)
	return string(append(append(append(b, key...), name...), principal...))
}

const lengthsLen = 9

func appendLengths(b []byte, key, name, principal string) []byte {
	for _, n := range [...]int{len(key), len(name), len(principal)} {
		b = append(b, byte('0'+n/100), byte('0'+n/10%10), byte('0'+n%10))
	}
	return b
}

// textOf is what a record has behind the lengths. A payload that is longer than inline has only its length there.
func textOf(key, name, principal string, payload []byte, inline int) (text, long []byte) {
	if len(payload) > inline {
		payload, long = strconv.AppendInt(nil, int64(len(payload)), 10), payload
	}
	text = make([]byte, 0, len(key)+len(name)+len(principal)+len(payload))
	return append(append(append(append(text, key...), name...), principal...), payload...), long
}

func readRecord(s string) (r record, ok bool) {
	if len(s) < recordHeader || s[0] != '1' {
		return r, false
	}
	var n [5]int
	for i, field := range [...]string{s[19:32], s[32:45], s[45:48], s[48:51], s[51:54]} {
		if n[i], ok = digits(field); !ok {
			return r, false
		}
	}
	name, principal, payload := recordHeader+n[2], recordHeader+n[2]+n[3], recordHeader+n[2]+n[3]+n[4]
	if payload > len(s) {
		return r, false
	}
	r = record{
		key: s[recordHeader:name], name: s[name:principal], principal: s[principal:payload], payload: s[payload:],
		enqueued: int64(n[0]), notAfter: int64(n[1]), long: s[2] == 'b' || s[2] == 'B', given: s[2] == '=' || s[2] == 'B', seq: s[3:19],
	}
	if r.long {
		r.longSize, _ = digits(r.payload)
		r.payload = ""
	}
	return r, true
}

// digits reads a number of at most 16 digits.
func digits(s string) (n int, ok bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, len(s) > 0 && len(s) <= 16
}

// Attempts is the history of a message so far.
type Attempts struct {
	Attempts, Conflicts, Losses, Handed int
	Cause                               string
}

const (
	markLen   = 6        // of a token's end, which tells what settled a message last
	markAlone = "alone!" // in its place once a message was run alone in its Worker: no token has a "!"
)

// ReadAttempts reads them without their first letter.
func ReadAttempts(s string) (a Attempts, ok bool) {
	if len(s) < markLen {
		return a, false
	}
	s = s[markLen:]
	for _, n := range [...]*int{&a.Attempts, &a.Conflicts, &a.Losses, &a.Handed} {
		var field string
		if field, s, ok = strings.Cut(s, " "); !ok {
			return a, false
		}
		if *n, ok = digits(field); !ok {
			return a, false
		}
	}
	_, a.Cause, ok = strings.Cut(s, " ")
	return a, ok
}

// Ending is how a message ended.
type Ending struct {
	Status
	Ended      time.Time
	ResultSize int64
	Result     string // of a dead letter
}

var endStates = map[byte]State{'d': Done, 'x': Dead, 'E': Expired, 'e': Expired, 'c': Cancelled, 's': Superseded}

const endingHeader = 18 // bytes up to the mark's end

// ReadEnding reads the ending of a message.
func ReadEnding(id, s string) (e Ending, ok bool) {
	if len(s) < endingHeader || endStates[s[0]] == None {
		return e, false
	}
	if s[0] == 'e' || s[0] == 'c' || s[0] == 's' {
		return readUnrun(id, s)
	}
	f := strings.SplitN(s[endingHeader:], " ", 10)
	if len(f) != 10 {
		return e, false
	}
	var n [7]int
	for i, at := range [...]int{0, 1, 2, 5, 6, 7, 8} {
		var is bool
		if n[i], is = digits(f[at]); !is {
			return e, false
		}
	}
	enqueued, ok1 := readMs(f[3], 36)
	age, ok2 := readMs(f[4], 36)
	ended, ok3 := readMs(s[1:12], 16)
	rest := f[9]
	name, principal, cause, end := n[4], n[4]+n[5], n[4]+n[5]+n[6], len(rest)
	if s[0] == 'x' {
		end -= n[3]
	}
	if !ok1 || !ok2 || !ok3 || cause > end {
		return e, false
	}
	e = Ending{Status: Status{
		ID: id, Key: rest[:name], Name: rest[name:principal], Principal: rest[principal:cause], Cause: rest[cause:end], State: endStates[s[0]],
		Attempts: n[0], Conflicts: n[1], Losses: n[2], EnqueuedAt: unixms.Time(enqueued), ExpiresAt: unixms.Time(enqueued + age),
	}, Ended: unixms.Time(ended), ResultSize: int64(n[3]), Result: rest[end:]}
	return e, true
}

// readUnrun reads the ending of a message that was not run: a script wrote it, around a part of the
// record.
func readUnrun(id, s string) (e Ending, ok bool) {
	const cut = 19 // bytes of a record before that part, of which readRecord needs the first only
	r, ok1 := readRecord("1" + strings.Repeat("-", cut-1) + s[endingHeader:])
	ended, ok2 := readMs(s[1:12], 16)
	a, ok3 := ReadAttempts(strings.Repeat("-", markLen) + r.payload)
	if !ok1 || !ok2 || !ok3 {
		return e, false
	}
	e = Ending{Status: Status{
		ID: id, Key: r.key, Name: r.name, Principal: r.principal, Cause: a.Cause, State: endStates[s[0]],
		Attempts: a.Attempts, Conflicts: a.Conflicts, Losses: a.Losses, EnqueuedAt: unixms.Time(r.enqueued), ExpiresAt: unixms.Time(r.notAfter),
	}, Ended: unixms.Time(ended)}
	if e.State == Superseded {
		e.SupersededBy, e.Cause = e.Cause, ""
	}
	return e, true
}

// readMs reads a time in an ending, in ms.
func readMs(s string, base int) (int64, bool) {
	n, err := strconv.ParseInt(s, base, 64)
	return n, err == nil && n >= 0 && n < 1e15
}

// ending is what is stored when a claim ends a message, from the mark on.
func (s *Settlement) ending() string {
	m, a := s.Message, s.count()
	b := make([]byte, 0, 64+len(m.Key)+len(m.Name)+len(m.Principal)+len(a.Cause))
	b = appendNumbers(appendMark(b, s.Token), a.Attempts, a.Conflicts, a.Losses)
	enqueued := unixms.Of(m.EnqueuedAt)
	b = append(strconv.AppendInt(b, enqueued, 36), ' ')
	b = append(strconv.AppendInt(b, unixms.Of(m.ExpiresAt)-enqueued, 36), ' ')
	b = appendNumbers(b, len(s.Result), len(m.Key), len(m.Name), len(m.Principal))
	return string(append(append(append(append(b, m.Key...), m.Name...), m.Principal...), a.Cause...))
}

// attempts is what is stored when a claim gives a message back, from the mark on.
func (s *Settlement) attempts() string {
	a := s.count()
	b := appendMark(make([]byte, 0, 32+len(a.Cause)), s.Token)
	return string(append(append(appendNumbers(b, a.Attempts, a.Conflicts, a.Losses, a.Handed), ' '), a.Cause...))
}

func appendNumbers(b []byte, numbers ...int) []byte {
	for _, n := range numbers {
		b = append(strconv.AppendInt(b, int64(n), 10), ' ')
	}
	return b
}

// appendMark appends the end of a token.
func appendMark(b []byte, token string) []byte {
	token = "------" + token
	return append(b, token[len(token)-markLen:]...)
}

// MemberOf is the entry of a message in WAITING and RUNNING.
func MemberOf(id, key string) string { return id + " " + key }

// SplitPlace reads an entry of FIFOS.
func SplitPlace(place string) (id, key string) {
	key, rest, _ := strings.Cut(place, "\n")
	if rest != "" && (rest[0] == '~' || rest[0] == '\x7f') { // delayed, or quiet
		return rest[1:], key
	}
	return rest[min(16, len(rest)):], key
}
