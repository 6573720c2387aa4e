package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

func (f figure) head() string {
	if f.base == "" {
		return f.name
	}
	return f.name + " × " + f.base
}

// text prints a value of f, and nothing for a row that has none.
func (f figure) text(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case f.base != "":
		return fmt.Sprintf("%.3g", v)
	case f.digits == nanoseconds:
		return duration(v)
	}
	return strconv.FormatFloat(v, 'f', f.digits, 64)
}

// duration prints nanoseconds with three digits.
func duration(ns float64) string {
	switch size := math.Abs(ns); {
	case size < 1e6:
		return fmt.Sprintf("%.3gµs", ns/1e3)
	case size < 1e9:
		return fmt.Sprintf("%.3gms", ns/1e6)
	}
	return fmt.Sprintf("%.3gs", ns/1e9)
}

// bar is what a row must reach.
type bar struct {
	row    string
	figure figure
	sign   string
	limit  float64
}

func atMost(row string, f figure, limit float64) bar  { return bar{row, f, "≤", limit} }
func atLeast(row string, f figure, limit float64) bar { return bar{row, f, "≥", limit} }

// report prints figures of all rows, and notes for printBars how the rows with bars did.
func (b *bench) report(title string, all table, figures []figure, bars ...bar) {
	lines := make([]string, len(all)+1)
	for _, f := range figures {
		lines[0] += "\t" + f.head()
	}
	lines[0] += "\t"
	for i, r := range all {
		lines[i+1] = r.name
		for _, f := range figures {
			lines[i+1] += "\t" + f.text(all.value(r, f))
		}
		lines[i+1] += "\t" + strings.TrimRight("  "+r.remark, " ")
	}
	printTable(title, lines, tabwriter.AlignRight)
	b.require(title, all, bars...)
}

// require compares rows with bars. What could not be measured is missed.
func (b *bench) require(title string, all table, bars ...bar) {
	for _, bar := range bars {
		f, r := bar.figure, all.find(bar.row)
		got, outcome, measured := all.value(r, f), "MISSED", ""
		if bar.sign == "≤" && got <= bar.limit || bar.sign == "≥" && got >= bar.limit {
			outcome = "ok"
		}
		if f.base != "" { // what the ratio is of
			base, plain := all.base(f), f.over("")
			measured = fmt.Sprintf("%s, %s %s", plain.text(all.value(r, plain)), base.name, plain.text(all.value(base, plain)))
		}
		*b.bars = append(*b.bars, fmt.Sprintf("%s\t%s: %s, %s\t%s\t%s %s\t%s",
			outcome, title, r.name, f.head(), f.text(got), bar.sign, f.text(bar.limit), measured))
	}
}

// printTable prints lines whose cells are between tabs.
func printTable(title string, lines []string, flags uint) {
	fmt.Printf("\n%s\n", title)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', flags)
	fmt.Fprintln(t, strings.Join(lines, "\n"))
	_ = t.Flush()
}
