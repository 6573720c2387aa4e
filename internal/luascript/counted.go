package luascript

import (
	"strconv"
	"sync/atomic"
)

// Counted is a number, as an argument of a call, that counts how often the call was written to a connection: a hook of the user's
// may send it twice, and only the last reply is seen.
type Counted struct {
	Number int64
	writes atomic.Int32
	text   [20]byte
}

// Twice reports whether the call was sent more than once to a server that knew its script.
func (c *Counted) Twice() bool { return c.writes.Load() > 1 }

// Reset prepares it for another call.
func (c *Counted) Reset(number int64) {
	c.Number = number
	c.writes.Store(0)
}

// MarshalBinary is called by go-redis for each write.
func (c *Counted) MarshalBinary() ([]byte, error) {
	c.writes.Add(1)
	return strconv.AppendInt(c.text[:0], c.Number, 10), nil
}

func (c *Counted) String() string { return strconv.FormatInt(c.Number, 10) }
