package config

import (
	"fmt"
	"strings"
)

// suggest is "; did you mean x?" if a name is nearly one of those known, and else
// says which are.
func suggest(name string, known []string) string {
	switch best := nearest(name, known); {
	case best != "":
		return meant(best)
	case len(known) == 0:
		return "; there are none"
	default:
		return "; want " + either(known)
	}
}

func meant(best string) string {
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// nearest is which of the names known somebody may have meant who wrote name, or
// empty: a letter in three may be wrong.
func nearest(name string, known []string) (best string) {
	least := len(name)/3 + 1
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// either lists names as a choice: a, b or c.
func either(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// distance is how many letters must be added, taken away, replaced, or swapped with
// their neighbour to make b of a (optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > 64 || len(y) > 64 {
		return len(x) + len(y)
	}
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(x)][len(y)]
}
