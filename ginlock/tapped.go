package ginlock

import (
	"bufio"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// tapped is gin's writer, whose response goes through another one that writes to it.
// gin keeps a status back until the first byte, so that one is told of it only then.
type tapped struct {
	gin.ResponseWriter
	tap http.ResponseWriter
}

// end begins a response that gin keeps back, if the handlers returned, and gives the
// context its writer again. A nil one has nothing to end.
func (w *tapped) end(c *gin.Context, returned bool) {
	if w == nil {
		return
	}
	// The status that gin has before anybody gave one is what net/http takes it for too: the
	// tap is to see that the handlers said nothing.
	if returned && w.Status() != http.StatusOK {
		w.begin()
	}
	c.Writer = w.ResponseWriter
}

func (w *tapped) begin() {
	if !w.Written() {
		w.tap.WriteHeader(w.Status()) // which says to gin what it knows
	}
}

func (w *tapped) WriteHeaderNow() {
	w.begin()
	w.ResponseWriter.WriteHeaderNow()
}

func (w *tapped) Write(p []byte) (int, error) {
	w.begin()
	return w.tap.Write(p)
}

func (w *tapped) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

func (w *tapped) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController looks for.
func (w *tapped) FlushError() error {
	w.WriteHeaderNow()
	return http.NewResponseController(w.tap).Flush()
}

func (w *tapped) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.tap).Hijack()
}

// Unwrap is for http.ResponseController.
func (w *tapped) Unwrap() http.ResponseWriter { return w.tap }
