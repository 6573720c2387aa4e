package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const sideBySide = 75 // columns that the three lists need for that

// section is a part of the screen. Where there is no room for all of them, those of the lowest rank stay.
type section struct {
	rank  int
	gap   bool // an empty line before it, if there is room
	lines []line
}

// layout is the screen: at most so many rows, and lines that are cut off after so many columns.
func (v *view) layout(columns, rows int) (all []line) {
	least, most := 4, 13
	if columns < sideBySide {
		least, most = 6, 18
	}
	lists := section{rank: 4, gap: true, lines: make([]line, least)}
	parts := []*section{
		{rank: 1, lines: []line{v.title(columns)}},
		{rank: 0, gap: true, lines: v.table(columns)},
		&lists,
		{rank: 5, gap: true, lines: v.events(columns)},
		{rank: 2, gap: true, lines: v.promise(columns)},
		{rank: 3, lines: v.address(columns)},
		{rank: 6, lines: v.curls(columns)},
	}
	left := rows
	for _, part := range slices.SortedFunc(slices.Values(parts), func(x, y *section) int { return x.rank - y.rank }) {
		if len(part.lines) > left {
			part.lines = nil
		}
		left -= len(part.lines)
	}
	for _, part := range parts {
		if part.gap && len(part.lines) > 0 && left > 0 {
			part.lines = slices.Insert(part.lines, 0, line{})
			left--
		}
	}
	if n := len(lists.lines); n >= least {
		lists.lines = append(lists.lines[:n-least], v.lists(columns, min(least+left, most))...)
	}
	for _, part := range parts {
		all = append(all, part.lines...)
	}
	return all
}

func (v *view) title(columns int) line {
	l := line{{bold, "perkey"}, {plain, " one request at a time per key"}}
	right := fmt.Sprintf("%s Redis  %s", v.redis, v.elapsed.Round(time.Second))
	if gap := columns - l.width() - len(right); gap >= 2 {
		return append(l, span{plain, strings.Repeat(" ", gap) + right})
	}
	return l
}

// lists are who is inside, who waits, and what is parked, in so many rows.
func (v *view) lists(columns, rows int) []line {
	lists := []struct {
		head    string
		style   style
		entries []entry
	}{{"inside now", green, v.inside}, {"waiting", blue, v.waiting}, {"parked", pink, v.parked}}

	lines := make([]line, rows)
	if columns < sideBySide {
		each := rows / len(lists)
		for i, list := range lists {
			lines[i*each] = line{{bold, fmt.Sprintf("%s: %d", list.head, len(list.entries))}}
			fill(lines[i*each+1:(i+1)*each], list.entries, list.style, 0, columns)
		}
		return lines
	}
	width := min(columns, 120) / len(lists)
	for i, list := range lists {
		lines[0] = append(lines[0].padded(i*width), span{bold, fmt.Sprintf("%s: %d", list.head, len(list.entries))})
		fill(lines[1:], list.entries, list.style, i*width, width)
	}
	return lines
}

// fill adds entries to lines, as many as there is room for, in the columns that begin with from.
func fill(lines []line, entries []entry, style style, from, width int) {
	for i, e := range entries[:min(len(entries), len(lines))] {
		key := fmt.Sprintf("%-11s", cut(e.key, width-len(e.text)-2))
		lines[i] = append(lines[i].padded(from), span{style, key}, span{plain, " " + e.text})
	}
}

// cut shortens a long key.
func cut(key string, columns int) string {
	if len(key) <= columns || columns < 3 {
		return key
	}
	return key[:columns-2] + ".."
}

// events are what happened last on each route.
func (v *view) events(columns int) []line {
	lines := make([]line, 0, len(routes))
	for i := range routes {
		e, style := v.rows[i].event, []style{yellow, blue, pink}[i]
		l := line{{style, e.text}}
		if l.width()+len(e.more) <= columns {
			l = append(l, span{plain, e.more})
		}
		lines = append(lines, l)
	}
	return lines
}

// promise is what was promised, and how often it was seen to be kept.
func (v *view) promise(columns int) []line {
	l := line{{green, "violations: 0"}}
	if v.violations > 0 {
		l = line{{red, fmt.Sprintf("violations: %d", v.violations)}}
	}
	for _, more := range []string{fmt.Sprintf(" in %d runs", v.entered), "   promised: one at a time per key, parked in order"} {
		if l.width()+len(more) <= columns {
			l = append(l, span{plain, more})
		}
	}
	lines := []line{l}
	if v.total.failed+v.lostOnes > 0 {
		lines = append(lines, line{{red, fmt.Sprintf("failed: %d, lost: %d: %v", v.total.failed, v.lostOnes, v.failure)}})
	}
	return lines
}

// address is where the console is.
func (v *view) address(columns int) []line {
	l, readOnly := line{{plain, "console "}, {bold, v.place.url + "/ops/"}}, line{{yellow, "   read-only: others reach it too"}}
	if v.place.local {
		readOnly = nil
	} else if l.width()+readOnly.width() > columns {
		return []line{l, readOnly}
	}
	l = append(l, readOnly...)
	if more := "   Ctrl-C ends"; l.width()+len(more) <= columns {
		l = append(l, span{plain, more})
	}
	return []line{l}
}

// curls are what to try, each whole or not at all.
func (v *view) curls(columns int) (lines []line) {
	for _, c := range []struct{ request, says string }{
		{"POST '" + v.place.url + "/orders/7/pay?work=5s' &", "twice: 409"},
		{"PUT '" + v.place.url + "/carts/7?work=1s' &", "twice: waits"},
		{"POST '" + v.place.url + "/orders/7/ship?work=5s' &", "twice: 202"},
	} {
		l := line{{plain, "curl -X " + c.request}}
		if more := "  # " + c.says; l.width()+len(more) <= columns {
			l = append(l, span{plain, more})
		}
		if l.width() <= columns {
			lines = append(lines, l)
		}
	}
	return lines
}

// introduction is what stands before the lines of an output that is not a terminal.
func (v *view) introduction(once bool) string {
	lines := v.address(79)
	if !once {
		lines = append(lines, v.curls(79)...)
	}
	return text(append([]line{v.title(79), nil}, lines...), 79)
}

// sentence is the board in a line.
func (v *view) sentence() string {
	t := v.total
	return fmt.Sprintf("%4.0f s  %d requests: %d ran, %d refused, %d parked, %d replayed; violations: %d",
		v.elapsed.Seconds(), t.requests, t.ran, t.refused, t.parked, t.replayed, v.violations)
}

// summary is what stays when the demo has ended.
func (v *view) summary(columns int) string {
	lines := append(append(v.table(columns-1), nil), v.promise(columns-1)...)
	return text(lines, columns-1) + fmt.Sprintf("%.1f s on %s Redis\n", v.elapsed.Seconds(), v.redis)
}

// text is lines without colors, cut off after so many columns.
func text(lines []line, columns int) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&b, l.clipped(columns).draw(false))
	}
	return b.String()
}
