package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// column is one of a table of results. Its cell is empty for a result without a round.
type column struct {
	head string
	cell func(*result) string
}

// col is the median of a figure.
func col(head string, f figure, format func(float64) string) column {
	return column{head, func(r *result) string { return format(r.median(f)) }}
}

// times is a figure as a ratio to base's.
func times(head string, f figure, base *result) column {
	return column{head + "×" + base.name, func(r *result) string { return decimals(2)(r.ratio(base, f)) }}
}

func decimals(n int) func(float64) string {
	return func(v float64) string { return fmt.Sprintf("%.*f", n, v) }
}

// brief prints nanoseconds with three digits.
func brief(ns float64) string {
	switch d := time.Duration(ns).Abs(); {
	case d < time.Millisecond:
		return fmt.Sprintf("%.3gµs", ns/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3gms", ns/1e6)
	default:
		return fmt.Sprintf("%.3gs", ns/1e9)
	}
}

// print prints a table with a row for each result.
func (all results) print(title string, columns ...column) {
	fmt.Printf("\n%s\n", title)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range columns {
		_, _ = fmt.Fprint(t, "\t", c.head)
	}
	_, _ = fmt.Fprintln(t, "\t")
	for _, r := range all {
		_, _ = fmt.Fprint(t, r.name)
		for _, c := range columns {
			cell := "–"
			if len(r.rounds) > 0 {
				cell = c.cell(r)
			}
			_, _ = fmt.Fprint(t, "\t", cell)
		}
		_, _ = fmt.Fprintln(t, "\t"+strings.TrimRight("  "+r.remark, " "))
	}
	_ = t.Flush()
}

// printOps prints a table of operations, with ratios to the one named base.
func (all results) printOps(title, base string) {
	floor := all.find(base)
	all.print(title, col("p50", p50, brief), col("p99", p99, brief), col("ops/s", perSecond, decimals(0)),
		times("p50 ", p50, floor), times("p99 ", p99, floor), times("ops/s ", perSecond, floor),
		col("allocs/op", allocs, decimals(1)), col("Redis CPU/op", redisCPU, brief),
		col("scripts/op", scripts, decimals(2)), col("commands/op", commands, decimals(2)))
}

// bar is what perkey must reach: at most want, or at least. One that could not be measured is missed.
type bar struct {
	what   string
	got    float64
	sign   string
	want   float64
	figure string // where got is from, if it is a ratio
}

func (b *bench) atMost(what string, got, want float64, figure ...string) {
	b.bars = append(b.bars, bar{what, got, "≤", want, strings.Join(figure, ", ")})
}

func (b *bench) atLeast(what string, got, want float64, figure ...string) {
	b.bars = append(b.bars, bar{what, got, "≥", want, strings.Join(figure, ", ")})
}

func (b *bench) printBars() {
	fmt.Printf("\nwhat perkey must reach\n")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, bar := range b.bars {
		outcome := "MISSED"
		if bar.sign == "≤" && bar.got <= bar.want || bar.sign == "≥" && bar.got >= bar.want {
			outcome = "ok"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%.4g\t%s %.4g\t%s\n", outcome, bar.what, bar.got, bar.sign, bar.want, bar.figure)
	}
	_ = t.Flush()
}

// rates is a bar's figure: the throughput of two results.
func rates(perkey, other *result) string {
	return fmt.Sprintf("%.0f/s, %s %.0f/s", perkey.median(perSecond), other.name, other.median(perSecond))
}

// durations is the same with a figure that is a time.
func durations(perkey, other *result, f figure) string {
	return fmt.Sprintf("%s, %s %s", brief(perkey.median(f)), other.name, brief(other.median(f)))
}
