package store

import (
	"context"
	"time"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Cancel ends queued messages. It reports for each whether it cancelled it: one that is too old expires.
func (p *Partition) Cancel(ctx context.Context, ids ...string) ([]bool, error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	reply, err := p.change(ctx, cancelScript, nil, args...)
	return yes(ctx, "cancel", len(ids), reply, err)
}

// Letter is a dead letter as it was seen: it may have been redriven since, and have
// died again.
type Letter struct {
	ID   string
	Died string // as its ending has it; "" whenever that was
}

// Redriven is what became of a dead letter.
type Redriven string

// What becomes of one, or that a bound keeps it where it is; any other is that it was none.
const (
	RedriveDone    Redriven = "redriven"
	RedriveDamaged Redriven = "damaged"
)

// Full is the bound that keeps the letter where it is.
func (r Redriven) Full() Full { return fullOf(string(r)) }

// Redrive puts dead letters back into the queue.
func (p *Partition) Redrive(ctx context.Context, maxAge time.Duration, letters ...Letter) ([]Redriven, error) {
	args := []any{p.store.admission, Milliseconds(maxAge)}
	words, ids := make([]Redriven, len(letters)), make([]string, len(letters))
	for i, l := range letters {
		args, ids[i] = append(args, l.ID, l.Died), l.ID
	}
	reply, err := p.change(ctx, redriveScript, ids, args...)
	if err == nil && len(reply) != len(letters) {
		err = luascript.ErrReply
	}
	if err != nil {
		return nil, Unavailable(ctx, "redrive", err)
	}
	for i := range reply {
		word, _ := reply[i].(string)
		words[i] = Redriven(word)
	}
	return words, nil
}

// Purge forgets dead letters. It reports for each whether nothing is left of it.
func (p *Partition) Purge(ctx context.Context, letters ...Letter) ([]bool, error) {
	var args []any
	for _, l := range letters {
		args = append(args, l.ID, l.Died)
	}
	reply, err := p.change(ctx, purgeScript, nil, args...)
	return yes(ctx, "purge", len(letters), reply, err)
}
