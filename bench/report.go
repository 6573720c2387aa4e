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

// bar is something that perkey must reach. One that could not be measured is missed.
type bar struct {
	what    string
	figure  string // what got comes from, if it is a ratio
	got     float64
	want    float64
	atLeast bool // otherwise at most
}

func (b bar) met() bool {
	if b.atLeast {
		return b.got >= b.want
	}
	return b.got <= b.want
}

// table prints one row per result, with ratios to the one named floor.
func (r *report) table(title, floor string, results []result) {
	base := find(results, floor)
	_, _ = fmt.Fprintf(r.w, "\n%s\n", title)
	t := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tp50\tp99\tops/s\tp50 ×%[1]s\tp99 ×%[1]s\tops/s ×%[1]s\tallocs/op\tRedis CPU/op\tscripts/op\tcommands/op\t\n", floor)
	for _, res := range results {
		if len(res.rounds) == 0 {
			_, _ = fmt.Fprintf(t, "%s\t–\t–\t–\t–\t–\t–\t–\t–\t–\t–\t  %s\n", res.name, res.remark)
			continue
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.1f\t%s\t%.2f\t%.2f\t  %s\n", res.name,
			brief(res.median(p50)), brief(res.median(p99)), res.median(perSecond),
			res.ratio(base, p50), res.ratio(base, p99), res.ratio(base, perSecond),
			res.allocs, brief(float64(res.redis)), res.calls.scripts(), res.calls.all(), res.remark)
	}
	_ = t.Flush()
}

// contended prints one row per contestant for one key, with ratios to base.
func (r *report) contended(title string, base result, results []result) {
	_, _ = fmt.Fprintf(r.w, "\n%s\n", title)
	t := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tacquisitions/s\t×%[1]s\tp50 wait\tp99 wait\tp99 ×%[1]s\tJain\tstarved\tscripts/acq\tcommands/acq\t\n", base.name)
	for _, res := range results {
		if len(res.rounds) == 0 {
			_, _ = fmt.Fprintf(t, "%s\t–\t–\t–\t–\t–\t–\t–\t–\t–\t  %s\n", res.name, res.remark)
			continue
		}
		_, _ = fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%s\t%s\t%.2f\t%.3f\t%.0f\t%.2f\t%.2f\t  %s\n", res.name,
			res.median(perSecond), res.ratio(base, perSecond), brief(res.median(p50)), brief(res.median(p99)),
			res.ratio(base, p99), res.median(jain), res.median(starved), res.calls.scripts(), res.calls.all(), res.remark)
	}
	_ = t.Flush()
}

// handOffs prints one row per contestant.
func (r *report) handOffs(title string, base result, results []result) {
	_, _ = fmt.Fprintf(r.w, "\n%s\n", title)
	t := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tp50\tp99\tp50 ×%s\tscripts each\tcommands each\t\n", base.name)
	for _, res := range results {
		if len(res.rounds) == 0 {
			_, _ = fmt.Fprintf(t, "%s\t–\t–\t–\t–\t–\t  %s\n", res.name, res.remark)
			continue
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%.2f\t%.2f\t  %s\n", res.name, brief(res.median(p50)), brief(res.median(p99)),
			res.ratio(base, p50), res.calls.scripts(), res.calls.all(), res.remark)
	}
	_ = t.Flush()
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

func (r *report) bar(b bar) { r.bars = append(r.bars, b) }

func (r *report) printBars() {
	_, _ = fmt.Fprintf(r.w, "\nwhat perkey must reach\n")
	t := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', 0)
	for _, b := range r.bars {
		verdict, sign := "MISSED", "≤"
		if b.met() {
			verdict = "ok"
		}
		if b.atLeast {
			sign = "≥"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%.4g\t%s %.4g\t%s\n", verdict, b.what, b.got, sign, b.want, b.figure)
	}
	_ = t.Flush()
}
