package serve

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"time"

	"github.com/perkey-go/perkey/sqlfence"
)

// Work takes a second, or until ctx ends: the client left, or the lease was lost.
func Work(ctx context.Context) error {
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Answer is a handler of requests for one thing: it calls f with the number in the path, and answers with the text that f returns.
func Answer(f func(ctx context.Context, id int64) (string, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			http.Error(w, "not a number", http.StatusBadRequest)
			return
		}
		text, err := f(r.Context(), id)
		switch {
		case errors.Is(err, sqlfence.ErrStale): // since step 5
			http.Error(w, "nothing was written, try again", http.StatusServiceUnavailable)
		case err != nil:
			log.Print(err)
			http.Error(w, "internal error", http.StatusInternalServerError)
		default:
			fmt.Fprintln(w, text)
		}
	})
}
