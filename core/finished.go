package core

import "github.com/perkey-go/perkey/core/internal/store"

// finishedTokens are the owner tokens that this process no longer needs: they were released, or
// left their key's FIFO. Redis may still know them, or know them again: a replica that becomes the
// primary may have missed the latest writes. A message that grants the key to one of them names it
// without its secret.
type finishedTokens struct {
	tokens map[string]string // by name
	names  []string          // the latest maxFinished
	next   int               // the oldest one's index, once there are maxFinished
}

const maxFinished = 4096

func (f *finishedTokens) add(token string) {
	name := store.Named(token)
	if f.tokens[name] != "" {
		return
	}
	if len(f.names) < maxFinished {
		f.names = append(f.names, name)
	} else {
		delete(f.tokens, f.names[f.next])
		f.names[f.next] = name
		f.next = (f.next + 1) % maxFinished
	}
	f.tokens[name] = token
}
