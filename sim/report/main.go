// Command report writes docs/proof.md from what worlds came to: sim/results/worlds.jsonl (-results) and mutants.tsv (-mutants).
//
//	go run -C sim ./report
package main

import (
	"cmp"
	_ "embed"
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
		Found  []plan.Mutant // scripts first
		Missed []plan.Mutant
	}
	data.Told = plan.Faults
	worlds := map[string]*plan.Batch{}
	batches, err := plan.ReadBatches("results/worlds.jsonl")
	if err != nil {
		return err
	}
	for _, b := range batches {
		for _, to := range []*plan.Batch{&data.All, of(worlds, b.World)} {
			to.Add(b)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(worlds)) {
		data.Worlds = append(data.Worlds, *worlds[name])
	}
	data.Faults = slices.Sorted(maps.Keys(data.All.Faults))
	mutants, err := plan.ReadMutants("results/mutants.tsv")
	if err != nil {
		return err
	}
	for _, m := range mutants {
		if m.Seeds > 0 {
			data.Found = append(data.Found, m)
		} else {
			data.Missed = append(data.Missed, m)
		}
	}
	out, err := os.Create("../docs/proof.md")
	if err != nil {
		return err
	}
	t := template.Must(template.New("proof").Funcs(template.FuncMap{"plus": func(a, b int) int { return a + b }, "hours": hours, "scripts": scripts, "within": within}).Parse(page))
	return cmp.Or(t.Execute(out, data), out.Close())
}

func scripts(all []plan.Mutant) (of []plan.Mutant) {
	return slices.DeleteFunc(slices.Clone(all), func(m plan.Mutant) bool { return strings.HasSuffix(m.Where, ".go") })
}

// within counts those that were found in so many seeds at most.
func within(seeds uint64, all []plan.Mutant) (n int) {
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
