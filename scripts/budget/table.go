package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// line is a number of the table: what stood when it was written, what may be added to that, and what it shall become.
type line struct{ stood, add, goal int }

var row = regexp.MustCompile(`(?m)^\| ([a-z][a-z ]*) \|.*\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$`)

// parse reads the table in a text: its lines end in three columns of digits.
func parse(text string) (map[string]line, error) {
	lines := map[string]line{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		var l line
		for i, field := range []*int{&l.stood, &l.add, &l.goal} {
			n, err := strconv.Atoi(strings.ReplaceAll(m[2+i], ",", ""))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m[1], err)
			}
			*field = n
		}
		if _, twice := lines[m[1]]; twice {
			return nil, fmt.Errorf("%q stands twice", m[1])
		}
		lines[m[1]] = l
	}
	return lines, nil
}

// compare is a report of what was measured, and of each number that is above what is allowed.
func compare(measured []number, allowed map[string]line) (report string, over []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-20s %8s %8s %8s\n", "", "now", "allowed", "goal")
	for _, m := range measured {
		l, ok := allowed[m.what]
		if !ok {
			over = append(over, fmt.Sprintf("the table lacks %q, of which there are %d", m.what, m.n))
			continue
		}
		fmt.Fprintf(&b, "%-20s %8d %8d %8d\n", m.what, m.n, l.stood+l.add, l.goal)
		if m.n > l.stood+l.add {
			over = append(over, fmt.Sprintf("%s: %d, and %d are allowed", m.what, m.n, l.stood+l.add))
		}
	}
	return b.String(), over
}
