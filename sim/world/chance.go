//go:build faketime

package main

import (
	"math/rand/v2"
	"time"
)

// chance is a source of decisions.
type chance struct{ *rand.Rand }

// newChance returns the source of one part of the world: a part that decides more does not change the others.
func newChance(seed, part uint64) chance { return chance{rand.New(rand.NewPCG(seed, part))} }

// one is true once in n.
func (c chance) one(n int) bool { return c.IntN(n) == 0 }

func (c chance) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.Int64N(int64(most-least)+1))
}

// pick returns one of all.
func pick[T any](c chance, all ...T) T { return all[c.IntN(len(all))] }
