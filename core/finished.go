package core

import "github.com/perkey-go/perkey/core/internal/store"

// finishedTokens are the owner tokens with which this process is done: they were released, or left
// their key's FIFO. Redis may know them yet, or again: a replica that becomes the primary has not
// heard of the latest. The message that grants the key to one of them names it without its secret.
type finishedTokens struct {
	tokens map[string]string // by name
	names  []string          // the latest maxFinished
	next   int               // the oldest of them, once they are so many
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
