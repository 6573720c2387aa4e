package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Message is what a script, or another Locker, published to this one.
type Message struct {
	Kind MessageKind
	Key  string
	Name string // of the token that it is for; see [Named]

	Fence   int64         // of the grant: the first, if it is over
	Claim   int64         // when the grant's claim ends on the server's clock, in ms
	Left    time.Duration // of a MinHold
	Waiting bool          // others wait
	Room    bool          // nobody waits, and one more with this limit may hold the key
}

// MessageKind is what a Message says.
type MessageKind string

const (
	// Granted says that a token was granted the key; lua/grant.lua writes it.
	Granted MessageKind = "grant"
	// Ends says when the key will be free without a release, since the rest of a MinHold is over. It
	// is for one of the first tokens in the key's FIFO.
	Ends MessageKind = "ends"
	// Wanted says that calls of other processes wait behind a grant.
	Wanted MessageKind = "wanted"
	// Reserved says that the key is reserved.
	Reserved MessageKind = "reserved"
	// Freed says that nobody holds the key.
	Freed MessageKind = "free"
	// Forced says that a grant was taken away.
	Forced MessageKind = "lost"
	// Released says that a grant was released by another Locker that had its token.
	Released MessageKind = "released"
)

var messageFields = map[MessageKind]int{Granted: 5, Ends: 3, Wanted: 2, Reserved: 1, Freed: 1, Forced: 2, Released: 2}

// parseMessage reads a message: its kind, what goes with that, and the key. It reports false for one
// that is not whole, or of a newer version.
func parseMessage(text string) (m Message, ok bool) {
	word, rest, _ := strings.Cut(text, " ")
	m.Kind = MessageKind(word)
	fields := messageFields[m.Kind]
	f := strings.SplitN(rest, " ", fields)
	if fields == 0 || len(f) < fields {
		return m, false
	}
	m.Key = f[fields-1]
	var errs [2]error
	switch m.Kind {
	case Granted:
		m.Name, m.Waiting, m.Room = f[0], f[3] == "1", f[3] == "2"
		m.Fence, errs[0] = strconv.ParseInt(f[1], 10, 64)
		m.Claim, errs[1] = strconv.ParseInt(f[2], 10, 64)
	case Ends:
		var ms int64
		ms, errs[0] = strconv.ParseInt(f[1], 10, 64)
		m.Name, m.Left = f[0], time.Duration(ms)*time.Millisecond
	case Wanted, Forced, Released:
		m.Fence, errs[0] = strconv.ParseInt(f[0], 10, 64)
	}
	return m, errs == [2]error{}
}

func (d *deployment) TellReleased(ctx context.Context, locker, key string, fence int64) {
	d.rdb.Publish(ctx, channelPrefix(d.prefix)+locker, fmt.Sprintf("%s %d %s", Released, fence, key))
}

// receive hands on what was published.
func (d *deployment) receive(text string) {
	if d.subscription.Counted() { // by the server of the commands, which has sent it
		d.batcher("").hear(nil)
	}
	if m, ok := parseMessage(text); ok {
		d.events.Message(m)
	}
}
