// Command report writes docs/proof.md from what worlds came to: sim/results/worlds.jsonl (-results) and mutants.tsv (-mutants).
//
//	go run -C sim ./report
package main

import (
	"bufio"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/perkey-go/perkey/sim/plan"
)

//go:embed proof.md.tmpl
var page string

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run() error {
	var data struct {
		Worlds []plan.Batch // all batches of a kind as one
		All    plan.Batch
		Faults []string
		Told   map[string]string
		Found  []mutant // scripts first
		Missed []mutant
	}
	data.Told = plan.Faults
	worlds := map[string]*plan.Batch{}
	err := lines("results/worlds.jsonl", func(line string) error {
		var b plan.Batch
		if err := json.Unmarshal([]byte(line), &b); err != nil {
			return err
		}
		for _, to := range []*plan.Batch{&data.All, of(worlds, b.World)} {
			to.World, to.Go = b.World, b.Go
			to.Date, to.Commit = max(to.Date, b.Date), b.Commit
			to.Worlds += b.Worlds
			to.Failed += b.Failed
			to.Calls += b.Calls
			to.Orders += b.Orders
			to.Virtual += b.Virtual
			to.Processor += b.Processor
			if to.Faults == nil {
				to.Faults = map[string]int{}
			}
			for kind, n := range b.Faults {
				to.Faults[kind] += n
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(worlds)) {
		data.Worlds = append(data.Worlds, *worlds[name])
	}
	data.Faults = slices.Sorted(maps.Keys(data.All.Faults))
	err = lines("results/mutants.tsv", func(line string) error {
		fields := strings.SplitN(line, "\t", 4)
		m := mutant{File: fields[1], Name: fields[2]}
		if _, err := fmt.Sscan(fields[0], &m.Seeds); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		if m.Seeds > 0 {
			data.Found = append(data.Found, m)
		} else {
			data.Missed = append(data.Missed, m)
		}
		return nil
	})
	if err != nil {
		return err
	}
	out, err := os.Create("../docs/proof.md")
	if err != nil {
		return err
	}
	t := template.Must(template.New("proof").Funcs(template.FuncMap{"plus": func(a, b int) int { return a + b }, "hours": hours, "scripts": scripts, "code": code, "within": within}).Parse(page))
	return cmp.Or(t.Execute(out, data), out.Close())
}

// mutant is a line of mutants.tsv: in how many seeds it was found; 0: in none.
type mutant struct {
	Seeds      int
	File, Name string
}

func scripts(all []mutant) (of []mutant) {
	return slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return strings.HasSuffix(m.File, ".go") })
}

func code(all []mutant) (of []mutant) {
	return slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return !strings.HasSuffix(m.File, ".go") })
}

// within counts those that were found in so many seeds at most.
func within(seeds int, all []mutant) (n int) {
	for _, m := range all {
		if m.Seeds <= seeds {
			n++
		}
	}
	return n
}

func hours(d time.Duration) string { return fmt.Sprintf("%.1f h", d.Hours()) }

func of(all map[string]*plan.Batch, name string) *plan.Batch {
	if all[name] == nil {
		all[name] = &plan.Batch{}
	}
	return all[name]
}

// lines reads a file line by line.
func lines(path string, each func(line string) error) error {
	in, err := os.Open(path) //nolint:gosec // its name is a constant
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	for scanner := bufio.NewScanner(in); scanner.Scan(); {
		if err := each(scanner.Text()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
