package httplock

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
)

// WithPrefer lets clients choose with the header Prefer (RFC 7240) among what the
// guard's policy would do anyway. With "wait=N" a request waits for N seconds at most,
// and for 0 not at all, before the policy goes on to its next step; it never waits
// longer than the policy lets it. With "respond-async" it is parked at once, if the
// policy would park it after waiting, and if it can be parked; with both it waits first.
// Everything else in Prefer is left to the handler.
//
// Preference-Applied says which preference decided: wait=N if the request was refused or
// parked because that time was over, and respond-async if it was parked because of it. It
// is left out if the preference changed nothing, as for a request that got its key, or
// whose route parks at once anyway. Vary: Prefer is in every response to a request that
// needs the key. Replays have no preference.
//
// It is an option because Prefer may be meant for the handler: an API that implements
// "respond-async" itself needs its requests run, not parked.
func WithPrefer() Option {
	return func(m *Middleware) error {
		m.honorPrefer = true
		return nil
	}
}

// preferred is what a request's client asks for and the guard honors. It tells caches
// that the response depends on it.
func (m *Middleware) preferred(x Exchange) core.Preference {
	if !m.honorPrefer {
		return core.Preference{}
	}
	if h := x.Writer.Header(); !namedBy(h["Vary"], "Prefer") {
		h.Add("Vary", "Prefer")
	}
	if w, ok := m.guard.Policy().(core.WaitingPolicy); ok && !w.Waits() {
		return core.Preference{} // it decides at once anyway
	}
	return m.guard.Honors(parsePrefer(x.Request.Header["Prefer"]))
}

// applied is the part of the client's preference that decided what became of a request that did not run.
func (p *requestState) applied(err error) core.Preference {
	prefers := p.call.Prefer
	if !p.met || errors.Is(err, errAnswered) { // an answer comes before any waiting
		return core.Preference{}
	}
	return core.Preference{
		Async:   prefers.Async && errors.Is(err, core.ErrDeferred),
		Bounded: prefers.Bounded && !p.asked.IsZero() && time.Since(p.asked) >= prefers.Wait,
		Wait:    prefers.Wait,
	}
}

// announce says which preferences were applied.
func announce(w http.ResponseWriter, p core.Preference) {
	if p.Async {
		w.Header().Add("Preference-Applied", "respond-async")
	}
	if p.Bounded {
		w.Header().Add("Preference-Applied", "wait="+strconv.FormatInt(int64(p.Wait/time.Second), 10))
	}
}

// parsePrefer reads the values of Prefer. Of a preference that is there twice the first
// counts. What does not follow the grammar is passed over, up to the next comma that is
// in no quoted string.
func parsePrefer(lines []string) (p core.Preference) {
	var waitSeen, asyncSeen bool
	for _, line := range lines {
		s := scanner{rest: line}
		for !s.end() {
			name, value, ok := s.preference()
			switch {
			case !ok:
				s.skip()
			case !waitSeen && strings.EqualFold(name, "wait"):
				waitSeen = true
				p.Wait, p.Bounded = deltaSeconds(value)
			case !asyncSeen && strings.EqualFold(name, "respond-async"):
				asyncSeen = true
				p.Async = value == ""
			}
			s.comma()
		}
	}
	return p
}

// deltaSeconds reads RFC 9110's delay-seconds. More than a Duration holds is as much as
// it holds.
func deltaSeconds(s string) (time.Duration, bool) {
	const most = uint64(math.MaxInt64 / int64(time.Second))
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	if s == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil { // out of range
		n = most
	}
	return time.Duration(min(n, most)) * time.Second, true
}

// scanner reads a header's value from its beginning. Its methods consume what they
// accept.
type scanner struct {
	rest string
	open bool // a quoted string was met that has no end
}

func (s *scanner) end() bool { return s.rest == "" }

// preference is a name, with a value or not, and parameters, up to a comma or the end.
//
//	preference = token [ BWS "=" BWS word ] *( OWS ";" [ OWS parameter ] )
func (s *scanner) preference() (name, value string, ok bool) {
	s.space()
	if name, value, ok = s.pair(); !ok {
		return "", "", false
	}
	for s.space(); s.take(';'); s.space() {
		s.space()
		if s.end() || s.rest[0] == ';' || s.rest[0] == ',' {
			continue // the parameter may be missing
		}
		if _, _, ok := s.pair(); !ok {
			return "", "", false
		}
	}
	return name, value, s.end() || s.rest[0] == ','
}

// pair is a token, with "=" and a word behind it or not.
func (s *scanner) pair() (name, value string, ok bool) {
	if name = s.token(); name == "" {
		return "", "", false
	}
	s.space()
	if !s.take('=') {
		return name, "", true
	}
	s.space()
	if strings.HasPrefix(s.rest, `"`) {
		value, ok = s.quoted()
		return name, value, ok
	}
	value = s.token()
	return name, value, value != ""
}

func (s *scanner) token() string {
	n := 0
	for n < len(s.rest) && isToken(s.rest[n:n+1]) {
		n++
	}
	token := s.rest[:n]
	s.rest = s.rest[n:]
	return token
}

// quoted is a quoted-string of RFC 9110, without its quotes and escapes.
func (s *scanner) quoted() (string, bool) {
	var b strings.Builder
	for i := 1; i < len(s.rest); i++ {
		c := s.rest[i]
		if c == '"' {
			s.rest = s.rest[i+1:]
			return b.String(), true
		}
		if c == '\\' {
			if i++; i == len(s.rest) {
				break
			}
			c = s.rest[i]
		}
		if !isFieldValue(s.rest[i : i+1]) {
			break
		}
		b.WriteByte(c)
	}
	return "", false
}

func (s *scanner) space() { s.rest = strings.TrimLeft(s.rest, " \t") }

func (s *scanner) take(c byte) bool {
	if s.end() || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// comma ends a list's element. A list may have empty ones.
func (s *scanner) comma() {
	s.rest = strings.TrimLeft(s.rest, ", \t")
}

// skip passes over what is no preference, up to the next comma.
func (s *scanner) skip() {
	for !s.end() && s.rest[0] != ',' {
		if s.rest[0] == '"' && !s.open {
			if _, ok := s.quoted(); ok {
				continue
			}
			s.open = true // and so is every quote within it: each would be read to the end again
		}
		s.rest = s.rest[1:]
	}
}
