// Command budget measures how much there is of this repository, and compares it with the table "The budget" of
// docs/development.md: it prints the table with what it measured, and fails if a number is above what the table allows,
// or if the table lacks one. It runs at the top of the repository, and needs no network.
package main

import (
	"fmt"
	"os"
	"strings"
)

// table is where the numbers stand that may not be exceeded.
const table = "docs/development.md"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "budget:", err)
		os.Exit(1)
	}
}

func run() error {
	text, err := os.ReadFile(table)
	if err != nil {
		return err
	}
	allowed, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	measured, err := measure()
	if err != nil {
		return err
	}
	report, over := compare(measured, allowed)
	fmt.Print(report)
	if len(over) > 0 {
		return fmt.Errorf("%s\ntake as much out as you add, or let a commit of its own raise the number in %s and say which user it is for",
			strings.Join(over, "\n"), table)
	}
	return nil
}

// number is one line of the table.
type number struct {
	what string
	n    int
}

func measure() ([]number, error) {
	files, err := tracked()
	if err != nil {
		return nil, err
	}
	all, err := countText(files)
	if err != nil {
		return nil, err
	}
	packages, err := load()
	if err != nil {
		return nil, err
	}
	names, options := 0, 0
	for _, p := range packages {
		if isPublic(p.ImportPath, p.Name) {
			n, o := exported(p.types)
			names, options = names+n, options+o
		}
	}
	all = append(all, number{"exported names", names}, number{"options", options})
	for _, folder := range []string{"delayqueue", "httplock", "core"} {
		p, ok := packages[folder]
		if !ok {
			return nil, fmt.Errorf("no package %s", folder)
		}
		all = append(all, number{"knot of " + folder, largestKnot(uses(p))})
	}
	return all, nil
}
