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
	n, ok := numbers(s[19:32], s[32:45], s[45:48], s[48:51], s[51:54])
	if !ok {
		return r, false
	}
	var parts [3]string
	rest := s[recordHeader:]
	for i := range parts {
		if int(n[2+i]) > len(rest) {
			return r, false
		}
		parts[i], rest = rest[:n[2+i]], rest[n[2+i]:]
	}
	return record{
		key: parts[0], name: parts[1], principal: parts[2], payload: rest,
		enqueued: n[0], notAfter: n[1], body: s[2] == 'b', seq: s[3:19],
	}, true
}

// numbers reads as many whole numbers.
func numbers(texts ...string) (n []int64, ok bool) {
	n = make([]int64, len(texts))
	for i, text := range texts {
		var err error
		if n[i], err = strconv.ParseInt(text, 10, 64); err != nil || n[i] < 0 {
			return nil, false
		}
	}
	return n, true
}

// attempts are what became of a message until now.
type attempts struct {
	attempts, conflicts, losses, handed int
	token, cause                        string
}

// readAttempts reads them without their first letter.
func readAttempts(s string) (a attempts, ok bool) {
	f := strings.SplitN(s, " ", 7)
	if len(f) != 7 {
		return a, false
	}
	n, ok := numbers(f[:4]...)
	if !ok {
		return a, false
	}
	return attempts{int(n[0]), int(n[1]), int(n[2]), int(n[3]), f[4], f[6]}, true
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
	n, ok := numbers(f[0], f[1], f[2], f[5], f[6], f[7], f[8])
	enqueued, ok1 := base36(f[3])
	age, ok2 := base36(f[4])
	ended, err := strconv.ParseInt(s[1:12], 16, 64)
	rest, ok := f[9], ok && ok1 && ok2 && err == nil && ended >= 0
	for _, length := range n[min(4, len(n)):] { // each by itself: their sum may overflow
		ok = ok && length <= int64(len(rest))
	}
	if !ok || n[4]+n[5]+n[6] > int64(len(rest)) {
		return e, false
	}
	name, principal, cause := n[4], n[4]+n[5], n[4]+n[5]+n[6]
	return ending{Status: Status{
		ID: id, Key: rest[:name], Name: rest[name:principal], Principal: rest[principal:cause], Cause: rest[cause:], State: endStates[s[0]],
		Attempts: int(n[0]), Conflicts: int(n[1]), Losses: int(n[2]), EnqueuedAt: timeOf(enqueued), ExpiresAt: timeOf(enqueued + age),
	}, ended: timeOf(ended), resultSize: n[3]}, true
}

// base36 reads a time in an ending, in ms.
func base36(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 36, 64)
	return n, err == nil && n >= 0 && n < 1e15
}

// doneEnding is the ending of a message that is done, from the token on.
func doneEnding(m Message, token string, result int) string {
	token = "------" + token
	enqueued := m.EnqueuedAt.UnixMilli()
	return fmt.Sprintf("%s%d %d %d %s %s %d %d %d %d %s%s%s%s", token[len(token)-6:], m.Attempt, m.Conflicts, m.Losses,
		strconv.FormatInt(enqueued, 36), strconv.FormatInt(m.ExpiresAt.UnixMilli()-enqueued, 36), result, len(m.Key), len(m.Name), len(m.Principal),
		m.Key, m.Name, m.Principal, m.cause)
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
