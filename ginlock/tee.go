package ginlock

import (
	"bufio"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// teeWriter is a gin.ResponseWriter whose response goes through tee, which writes to the one
// embedded. gin keeps a status back until the first byte, so tee sees it only then.
type teeWriter struct {
	gin.ResponseWriter
	tee   http.ResponseWriter
	whole bool // tee is to see responses without a body too
}

// end begins a response that gin has kept back, if tee is to see it and the handlers returned, and restores the
// context's writer. On a nil teeWriter it does nothing.
func (w *teeWriter) end(c *gin.Context, returned bool) {
	if w == nil {
		return
	}
	// 200 may only be gin's default: tee must not mistake it for a handler's answer.
	if w.whole && returned && w.Status() != http.StatusOK {
		w.begin()
	}
	c.Writer = w.ResponseWriter
}

func (w *teeWriter) begin() {
	if !w.Written() {
		w.tee.WriteHeader(w.Status()) // which repeats gin's own status to gin
	}
}

func (w *teeWriter) WriteHeaderNow() {
	w.begin()
	w.ResponseWriter.WriteHeaderNow()
}

func (w *teeWriter) Write(p []byte) (int, error) {
	w.begin()
	return w.tee.Write(p)
}

func (w *teeWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

func (w *teeWriter) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController looks for.
func (w *teeWriter) FlushError() error {
	w.WriteHeaderNow()
	return http.NewResponseController(w.tee).Flush()
}

func (w *teeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.tee).Hijack()
}

// Unwrap is for http.ResponseController.
func (w *teeWriter) Unwrap() http.ResponseWriter { return w.tee }
