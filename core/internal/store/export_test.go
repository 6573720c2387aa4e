package store

// Batchers are those of a Cluster's nodes, by address. Each tells how many goroutines it has.
func Batchers(s Store) map[string]func() int {
	d := s.(*deployment)
	d.batchersMu.Lock()
	defer d.batchersMu.Unlock()
	all := map[string]func() int{}
	for node, n := range d.batchers {
		if node != nil {
			all[node.Options().Addr] = n.group.Goroutines
		}
	}
	return all
}

// LookAtNodes has the next call look for nodes that serve no slots any more.
func LookAtNodes(s Store) { s.(*deployment).looked.Store(0) }

// ClockOf is what is known of the clock of a record's node.
func ClockOf(s Store, record string) int64 { return s.(*deployment).batcher(record).clock.at.Load() }

// ParseMessage reads a message.
var ParseMessage = parseMessage
