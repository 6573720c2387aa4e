package delayqueue

import (
	"context"
	"slices"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// redrive puts a dead letter back, or a message that is none.
func (m *model) redrive() error {
	if x := m.any(StateDead); x != nil && m.rng.IntN(5) > 0 {
		return m.redriveLetter(x)
	}
	if len(m.all) == 0 {
		return nil
	}
	if x := m.all[m.rng.IntN(len(m.all))]; x.state != StateDead {
		_, err := m.q.manifests.partitions[0].Redrive(context.Background(), modelAge, store.Letter{ID: x.id}) // changes nothing
		return err
	}
	return nil
}

func (m *model) redriveLetter(x *modelMessage) error {
	if err := m.joined(); err != nil {
		return err
	}
	words, err := m.q.manifests.partitions[0].Redrive(context.Background(), modelAge, store.Letter{ID: x.id})
	if err != nil {
		return err
	}
	if words[0] != store.RedriveDone {
		return violated("redrive of %s: %s", x.id, words[0])
	}
	m.happened["redriven"]++
	x.state, x.attempts, x.conflicts, x.handed, x.till = StateQueued, 0, 0, 0, time.Now().Add(modelAge)
	x.coalesces, x.delayed, x.quiet, x.later, x.waits, x.waked = false, false, false, false, false, false
	m.forgetSettlements(x)
	switch {
	case x.key == "":
	case m.endHalt(x):
		m.happened["redriven first"]++
		m.lines[x.key] = slices.Insert(m.lines[x.key], 0, x)
	default:
		m.lines[x.key] = append(m.lines[x.key], x)
	}
	return nil
}

// purge forgets a dead letter.
func (m *model) purge() error {
	x := m.any(StateDead)
	if x == nil {
		return nil
	}
	return m.purgeLetter(x)
}

func (m *model) purgeLetter(x *modelMessage) error {
	purged, err := m.q.manifests.partitions[0].Purge(context.Background(), store.Letter{ID: x.id})
	if err != nil {
		return err
	}
	if !purged[0] {
		return violated("%s was not purged", x.id)
	}
	m.happened["purged"]++
	m.purged++
	m.endHalt(x)
	m.forgetSettlements(x)
	delete(m.byID, x.id)
	m.all = slices.DeleteFunc(m.all, func(y *modelMessage) bool { return x == y })
	return nil
}

// otherLetter is another dead letter of a message's key.
func (m *model) otherLetter(x *modelMessage) *modelMessage {
	i := slices.IndexFunc(m.all, func(y *modelMessage) bool { return y != x && y.state == StateDead && y.key == x.key })
	if i < 0 || x.key == "" {
		return nil
	}
	return m.all[i]
}

// endHalt reports whether a dead letter halted its key, which it does no more.
func (m *model) endHalt(x *modelMessage) bool {
	if m.halts[x.key].id != x.id {
		return false
	}
	delete(m.halts, x.key)
	m.happened["halts ended"]++
	return true
}

// forgetSettlements: what settled a message is known until it is redriven or purged.
func (m *model) forgetSettlements(x *modelMessage) {
	m.past = slices.DeleteFunc(m.past, func(p modelSettle) bool {
		return p.claim.message.ID == x.id
	})
	m.lost = slices.DeleteFunc(m.lost, func(c *claim) bool { return c.message.ID == x.id })
}
