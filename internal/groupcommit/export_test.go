package groupcommit

// Out is how many batches are under way.
func (g *Group[T]) Out() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.out
}
