package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/sim/plan"
)

// shrink looks for a smaller world that breaks a promise as well: with fewer kinds of faults, fewer processes, and less time. What is
// left out changes all that follows, so it tries one after the other, and keeps what helps. A world that breaks none stays as it is.
func (b binary) shrink(c plan.Config) (plan.Config, plan.Report, error) {
	r, _, err := b.play(c)
	if err != nil || len(r.Violations) == 0 {
		return c, r, err
	}
	keep := func(smaller plan.Config) bool {
		again, _, err := b.play(smaller)
		if err != nil || len(again.Violations) == 0 {
			return false
		}
		c, r = smaller, again
		return true
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		smaller := c
		smaller.With = slices.DeleteFunc(slices.Clone(c.With), func(k string) bool { return k == kind })
		smaller.Without = append(slices.Clone(c.Without), kind)
		keep(smaller)
	}
	for n := 1; n < r.Processes; n++ {
		smaller := c
		if smaller.Processes = n; keep(smaller) {
			break
		}
	}
	for {
		smaller := c
		if smaller.Seconds = c.Seconds / 2; smaller.Seconds == 0 || !keep(smaller) {
			return c, r, nil
		}
	}
}

// command is what plays a world again.
func command(c plan.Config) string {
	words := []string{"go run -C sim .", fmt.Sprintf("-seed=%d -seconds=%d", c.Seed, c.Seconds)}
	for _, option := range [][2]string{{"world", c.World}, {"with", strings.Join(c.With, ",")}, {"without", strings.Join(c.Without, ",")}, {"strict", strings.Join(c.Strict, ",")}} {
		if option[1] != "" {
			words = append(words, "-"+option[0]+"="+option[1])
		}
	}
	if c.Processes > 0 {
		words = append(words, fmt.Sprintf("-processes=%d", c.Processes))
	}
	return strings.Join(words, " ")
}
