package strictyaml

import (
	"fmt"
	"slices"
	"strings"
)

// Suggest is "; did you mean x?" if a name is nearly one of those known, and else says which are.
func Suggest(name string, known []string) string {
	switch best := Nearest(name, known); {
	case best != "":
		return Meant(best)
	case len(known) == 0:
		return "; there are none"
	default:
		return "; expected " + Either(known)
	}
}

// Meant is "; did you mean x?", or nothing for an empty name.
func Meant(best string) string {
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// Nearest is which of the names known somebody may have meant who wrote name, or empty: a letter in three may be
// wrong.
func Nearest(name string, known []string) (best string) {
	least := len(name)/3 + 1
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k), least); d < least {
			best, least = k, d
		}
	}
	return best
}

// Either lists names as a choice: a, b or c.
func Either(names []string) string {
	const most = 40
	switch n := len(names); {
	case n == 1:
		return names[0]
	case n > most:
		return fmt.Sprintf("%s or one of %d others", strings.Join(names[:most], ", "), n-most)
	default:
		return strings.Join(names[:n-1], ", ") + " or " + names[n-1]
	}
}

// distance is how many letters must be added, taken away, replaced, or swapped with their neighbor to make b of a
// (optimal string alignment), or most if it is that or more.
func distance(a, b string, most int) int {
	const longest = 48
	if len(a) > longest || len(b) > longest || len(a)-len(b) >= most || len(b)-len(a) >= most {
		return most
	}
	var rows [3][longest + 1]int // the last but one, the last and this
	for j := range len(b) + 1 {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row := &rows[(i+2)%3], &rows[i%3], &rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		if slices.Min(row[:len(b)+1]) >= most {
			return most
		}
	}
	return min(rows[(len(a)+1)%3][len(b)], most)
}
