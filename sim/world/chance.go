//go:build faketime

package main

import (
	"math/rand/v2"
	"time"
)

// chance is a source of decisions.
type chance struct {
	*rand.Rand
	step time.Duration // all that lasts for a time of chance lasts for a multiple of it
}

// newChance returns the source of one part of the world: a part that decides more does not change the others. In virtual time only what
// is at the same instant can race: in half of the worlds much is, since all times are in whole milliseconds.
func newChance(seed, part uint64) chance {
	step := pick(chance{rand.New(rand.NewPCG(seed, 0)), 0}, 1, time.Millisecond)
	return chance{rand.New(rand.NewPCG(seed, part)), step}
}

// one is true once in n.
func (c chance) one(n int) bool { return c.IntN(n) == 0 }

func (c chance) between(least, most time.Duration) time.Duration {
	return (least + time.Duration(c.Int64N(int64(most-least)+1))).Truncate(c.step)
}

// some returns about half of what a world can have, as of its faults: what it has more often is more of a strain. A. Groce and others,
// Swarm Testing, 2012.
func some(c chance, all []string) (chosen []string) {
	for _, one := range all {
		if c.one(2) {
			chosen = append(chosen, one)
		}
	}
	if chosen == nil {
		return all
	}
	return chosen
}

// pick returns one of all.
func pick[T any](c chance, all ...T) T { return all[c.IntN(len(all))] }
