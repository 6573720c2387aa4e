package delayqueue

import (
	"bytes"
	"context"
	"fmt"
	"sync"
)

// maxDeadResult bounds the result of its last attempt that a dead letter has, in bytes: lists
// read it.
const maxDeadResult = 4 << 10

// SetResult sets the result of a message, for [Queue.Result] once the message is done or a dead
// letter. A dead letter has the result of its last attempt, if that is no longer than 4 KiB. It is
// called by the handler, or by what the handler calls with its ctx; the last call counts. After an
// error, which wraps [ErrResultTooLarge] or [ErrNoHandler], the result is not set. It copies
// result.
func SetResult(ctx context.Context, result []byte) error {
	r, _ := ctx.Value(resultKey{}).(*resultHolder)
	if r == nil {
		return fmt.Errorf("delayqueue: set result: %w", ErrNoHandler)
	}
	if len(result) > r.most {
		return fmt.Errorf("delayqueue: set result: %w: %d bytes, at most %d are allowed", ErrResultTooLarge, len(result), r.most)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result = bytes.Clone(result)
	return nil
}

type resultKey struct{}

// resultHolder is what a handler's ctx carries.
type resultHolder struct {
	owner  any // the Worker
	most   int
	mu     sync.Mutex // a handler may have goroutines
	result []byte
}

func (r *resultHolder) get() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result
}
