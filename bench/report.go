package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// report prints tables as they come, and the bars at the end.
type report struct {
	w    io.Writer
	bars []bar
}

// bar is something that perkey must reach.
type bar struct {
	what    string
	got     float64
	want    float64
	atLeast bool // otherwise at most
}

func (b bar) String() string {
	verdict, sign := "MISS", "≤"
	if b.atLeast {
		sign = "≥"
	}
	if b.got == b.want || (b.got > b.want) == b.atLeast {
		verdict = "pass"
	}
	return fmt.Sprintf("%s  %s: %.2f, must be %s %.2f", verdict, b.what, b.got, sign, b.want)
}

// table prints one row per result, with ratios to the one named floor.
func (r *report) table(title, floor string, results []result) {
	base := find(results, floor)
	_, _ = fmt.Fprintf(r.w, "\n%s\n", title)
	t := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tp50\tp99\tops/s\tp50 ×%[1]s\tp99 ×%[1]s\tops/s ×%[1]s\tallocs/op\tscripts/op\t\n", floor)
	for _, res := range results {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.1f\t%.2f\t\n", res.name,
			micros(res.median(p50)), micros(res.median(p99)), res.median(perSecond),
			res.ratio(base, p50), res.ratio(base, p99), res.ratio(base, perSecond),
			res.allocs, res.calls.scripts())
	}
	_ = t.Flush()
	for _, res := range results {
		if len(res.calls) > 0 {
			_, _ = fmt.Fprintf(r.w, "  %s runs %s\n", res.name, res.calls)
		}
	}
}

func micros(ns float64) string {
	return fmt.Sprintf("%.1fµs", ns/float64(time.Microsecond))
}

func (r *report) printBars() {
	_, _ = fmt.Fprintln(r.w)
	for _, b := range r.bars {
		_, _ = fmt.Fprintln(r.w, b)
	}
}
