package core

import (
	"strconv"
	"strings"
)

// grantMessage says that an entry was granted a key. sendGrant in lua/message.lua writes it.
type grantMessage struct {
	name, key string // the entry's name, see named
	fence     int64
	ends      int64 // when its claim ends on the server's clock, in ms
	waiting   bool  // others wait
	room      bool  // nobody waits, and one more with this limit may hold the key
}

// parseGrant reads what follows the word grant.
func parseGrant(text string) (g grantMessage, ok bool) {
	f := strings.SplitN(text, " ", 5)
	if len(f) < 5 {
		return g, false
	}
	fence, err1 := strconv.ParseInt(f[1], 10, 64)
	ends, err2 := strconv.ParseInt(f[2], 10, 64)
	return grantMessage{name: f[0], key: f[4], fence: fence, ends: ends, waiting: f[3] == "1", room: f[3] == "2"}, err1 == nil && err2 == nil
}
