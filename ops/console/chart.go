package console

import (
	"fmt"
	"strings"
	"time"
)

// chart is a small line of what was counted lately.
type chart struct {
	Title, Unit, Now, Label string
	Points, Area            string // of an SVG of chartWidth by chartHeight
	Flat                    bool   // nothing to draw
}

const (
	chartWidth, chartHeight = 240, 40
	chartTime               = 10 * time.Minute // at most
	chartLeast              = 2 * time.Minute
	chartFresh              = 15 * time.Second // a value that is older is not what is now
)

// at is a value at a time.
type at struct {
	time  time.Time
	value float64
}

// newChart draws values of the last minutes up to now.
func newChart(title, unit string, now time.Time, values []at) chart {
	c := chart{Title: title, Unit: unit, Now: "–"}
	for len(values) > 0 && now.Sub(values[0].time) > chartTime { // nobody has read lately
		values = values[1:]
	}
	top, span := 0.0, chartLeast
	if len(values) > 0 {
		span = max(span, now.Sub(values[0].time))
	}
	for _, v := range values {
		top = max(top, v.value)
	}
	if n := len(values); n > 0 && now.Sub(values[n-1].time) <= chartFresh {
		c.Now = rate(values[n-1].value)
	}
	c.Label = fmt.Sprintf("%s: now %s%s, highest %s in the last %s", title, c.Now, unit, rate(top), count(int64(span.Minutes()+0.5), "minute", "minutes"))
	if len(values) < 2 {
		c.Flat = true
		return c
	}
	var points strings.Builder
	var first, last float64
	for _, v := range values {
		age := now.Sub(v.time)
		x := chartWidth * (1 - age.Seconds()/span.Seconds())
		y := float64(chartHeight - 2)
		if top > 0 {
			y -= v.value / top * (chartHeight - 4)
		}
		if points.Len() == 0 {
			first = x
		}
		last = x
		fmt.Fprintf(&points, "%.1f,%.1f ", x, y)
	}
	c.Points = strings.TrimSpace(points.String())
	c.Area = fmt.Sprintf("%.1f,%d %s %.1f,%d", first, chartHeight, c.Points, last, chartHeight)
	return c
}
