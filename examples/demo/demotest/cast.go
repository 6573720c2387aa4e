package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"strings"
	"time"

	"github.com/hinshun/vt10x"
)

// cast is a recording.
type cast struct {
	columns, rows int
	events        []event
}

// event is output, at a time since the beginning.
type event struct {
	at   time.Duration
	data string
}

// encode is the cast as an asciicast of version 2: a line of JSON for its header, and one for each event.
func (c cast) encode() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"version": 2, "width": %d, "height": %d, "title": "perkey: one request at a time per key"}`+"\n", c.columns, c.rows)
	for _, e := range c.events {
		data, err := json.Marshal(e.data)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "[%.3f, \"o\", %s]\n", e.at.Seconds(), data)
	}
	return b.Bytes(), nil
}

// Of a cell in the picture, in pixels.
const (
	cellWidth  = 8.4
	cellHeight = 18
	margin     = 12
	perSecond  = 2 // frames
)

// boldCell is a bit of a Glyph's Mode. Package vt10x does not export it.
const boldCell = 1 << 2

var colors = map[vt10x.Color]string{
	vt10x.Red: "#ff7b72", vt10x.Green: "#7ee787", vt10x.Yellow: "#e3b341", vt10x.Magenta: "#d2a8ff", vt10x.Cyan: "#79c0ff",
}

// svg is the first part of the cast as a picture that moves: all frames stand beside one another, and pass by one at a time. A line
// that occurs more than once is there once. Who prefers less motion sees one frame.
func (c cast) svg(length time.Duration) []byte {
	var defs, frames strings.Builder
	known := map[string]int{}
	width, height := float64(c.columns)*cellWidth+2*margin, c.rows*cellHeight+2*margin
	screen, next := vt10x.New(vt10x.WithSize(c.columns, c.rows)), 0
	count := int(length.Seconds() * perSecond)
	for i := range count {
		// The first frame is not the empty one that the demo begins with.
		for at := time.Duration(i+2*perSecond) * time.Second / perSecond; next < len(c.events) && c.events[next].at <= at; next++ {
			_, _ = screen.Write([]byte(c.events[next].data))
		}
		for y := range c.rows {
			text := svgLine(screen, c.columns, y)
			if text == "" {
				continue
			}
			id, ok := known[text]
			if !ok {
				id = len(known)
				known[text] = id
				fmt.Fprintf(&defs, "<g id=\"l%d\">%s</g>\n", id, text)
			}
			fmt.Fprintf(&frames, "<use href=\"#l%d\" x=\"%.1f\" y=\"%d\"/>\n", id, float64(i)*width+margin, (y+1)*cellHeight+margin-5)
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.1f" height="%d" viewBox="0 0 %[1]v %[2]d">
<title>perkey: one request at a time per key</title>
<style>
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; white-space: pre; fill: #e6edf3 }
.b { font-weight: bold }
#frames { animation: play %.0fs steps(%d) infinite }
@keyframes play { to { transform: translateX(%.1fpx) } }
@media (prefers-reduced-motion) { #frames { animation: none } }
</style>
<defs>
%s</defs>
<rect width="100%%" height="100%%" rx="6" fill="#0d1117"/>
<g id="frames">
%s</g>
</svg>
`, width, height, length.Seconds(), count, -float64(count)*width, defs.String(), frames.String())
	return b.Bytes()
}

// svgLine is a line of the screen: a text for each part of it that has one look, where it stands, without spaces around it.
func svgLine(screen vt10x.View, columns, y int) string {
	var b strings.Builder
	for x := 0; x < columns; {
		first := screen.Cell(x, y)
		from, text := x, ""
		for ; x < columns && !strings.HasSuffix(text, "  "); x++ {
			cell := screen.Cell(x, y)
			if cell.FG != first.FG || cell.Mode != first.Mode {
				break
			}
			text += string(max(cell.Char, ' '))
		}
		trimmed := strings.TrimLeft(text, " ")
		from += len(text) - len(trimmed)
		if trimmed = strings.TrimRight(trimmed, " "); trimmed == "" {
			continue
		}
		look := ""
		if color, ok := colors[first.FG]; ok {
			look = fmt.Sprintf(" style=\"fill:%s\"", color)
		}
		if first.Mode&boldCell != 0 {
			look += ` class="b"`
		}
		fmt.Fprintf(&b, `<text x="%.1f" textLength="%.1f"%s>%s</text>`, float64(from)*cellWidth, float64(len(trimmed))*cellWidth, look, html.EscapeString(trimmed))
	}
	return b.String()
}
