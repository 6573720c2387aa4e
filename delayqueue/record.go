package delayqueue

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What Redis holds of a message, in the forms that common.lua describes. The scripts judge what
// they read; reading it here only shows: what is unreadable is not there.

const recordHeader = 54 // bytes before the key in a record

// record is what a message was when it came.
type record struct {
	key, name, principal, payload string
	enqueued, notAfter            int64 // ms
	body                          bool  // the payload is elsewhere
	seq                           string
}

// about is the part of a record that does not change: what the message is, but for its payload.
func about(key, name, principal string) string {
	return fmt.Sprintf("%03d%03d%03d%s%s%s", len(key), len(name), len(principal), key, name, principal)
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
	return record{
		key: s[recordHeader:name], name: s[name:principal], principal: s[principal:payload], payload: s[payload:],
		enqueued: int64(n[0]), notAfter: int64(n[1]), body: s[2] == 'b', seq: s[3:19],
	}, true
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

// attempts are what became of a message until now.
type attempts struct {
	attempts, conflicts, losses, handed int
	token, cause                        string
}

// readAttempts reads them without their first letter.
func readAttempts(s string) (a attempts, ok bool) {
	for _, n := range [...]*int{&a.attempts, &a.conflicts, &a.losses, &a.handed} {
		var field string
		if field, s, ok = strings.Cut(s, " "); !ok {
			return a, false
		}
		if *n, ok = digits(field); !ok {
			return a, false
		}
	}
	if a.token, s, ok = strings.Cut(s, " "); !ok {
		return a, false
	}
	_, a.cause, ok = strings.Cut(s, " ") // after the claim that was settled last
	return a, ok
}

// ending is how a message ended.
type ending struct {
	Status
	ended      time.Time
	resultSize int64
}

var endStates = map[byte]State{'d': StateDone, 'x': StateDead, 'e': StateExpired, 'c': StateCancelled}

const endingHeader = 18 // bytes before an ending's attempts

func readEnding(id, s string) (e ending, ok bool) {
	if len(s) < endingHeader || endStates[s[0]] == "" {
		return e, false
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
	enqueued, ok1 := base36(f[3])
	age, ok2 := base36(f[4])
	ended, err := strconv.ParseInt(s[1:12], 16, 64)
	rest, ok := f[9], ok1 && ok2 && err == nil && ended >= 0
	if !ok || n[4]+n[5]+n[6] > len(rest) {
		return e, false
	}
	name, principal, cause := n[4], n[4]+n[5], n[4]+n[5]+n[6]
	return ending{Status: Status{
		ID: id, Key: rest[:name], Name: rest[name:principal], Principal: rest[principal:cause], Cause: rest[cause:], State: endStates[s[0]],
		Attempts: n[0], Conflicts: n[1], Losses: n[2], EnqueuedAt: timeOf(enqueued), ExpiresAt: timeOf(enqueued + age),
	}, ended: timeOf(ended), resultSize: int64(n[3])}, true
}

// base36 reads a time in an ending, in ms.
func base36(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 36, 64)
	return n, err == nil && n >= 0 && n < 1e15
}

// doneEnding is the ending of a message that is done, from the token on.
func doneEnding(m Message, token string, result int) string {
	token = "------" + token
	b := make([]byte, 0, 64+len(m.Key)+len(m.Name)+len(m.Principal)+len(m.cause))
	b = append(b, token[len(token)-6:]...)
	for _, n := range [...]int{m.Attempt, m.Conflicts, m.Losses} {
		b = append(strconv.AppendInt(b, int64(n), 10), ' ')
	}
	enqueued := m.EnqueuedAt.UnixMilli()
	b = append(strconv.AppendInt(b, enqueued, 36), ' ')
	b = append(strconv.AppendInt(b, m.ExpiresAt.UnixMilli()-enqueued, 36), ' ')
	for _, n := range [...]int{result, len(m.Key), len(m.Name), len(m.Principal)} {
		b = append(strconv.AppendInt(b, int64(n), 10), ' ')
	}
	for _, s := range [...]string{m.Key, m.Name, m.Principal, m.cause} {
		b = append(b, s...)
	}
	return string(b)
}

// timeOf is a time in ms; zero if there is none.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// memberOf is the entry of a message in z and w.
func memberOf(id, key string) string { return id + " " + key }

// splitPlace reads an entry of f.
func splitPlace(place string) (id, key string) {
	key, rest, _ := strings.Cut(place, "\n")
	if id, delayed := strings.CutPrefix(rest, "~"); delayed {
		return id, key
	}
	return rest[min(16, len(rest)):], key
}
