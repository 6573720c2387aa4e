package terminal

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A frame has only what has changed; without one before it, it has everything.
func TestFrame_DrawsWhatChanged(t *testing.T) {
	first := []string{"line a", "line b", "line c", ""}
	require.Equal(t, beginFrame+"\x1b[1;1Hline a\x1b[K\x1b[2;1Hline b\x1b[K\x1b[3;1Hline c\x1b[K\x1b[4;1H\x1b[K"+endFrame, frame(first, nil))
	require.Empty(t, frame(first, first))
	require.Equal(t, beginFrame+"\x1b[2;1Hline \x1b[31mB\x1b[m\x1b[K\x1b[3;1H\x1b[K"+endFrame, frame([]string{"line a", "line " + Red.Of("B"), "", ""}, first))
	require.Equal(t, beginFrame+"\x1b[2;1Hline longer\x1b[K"+endFrame, frame([]string{"line a", "line longer", "line c", ""}, first))
}

func TestLine_IsCutOff(t *testing.T) {
	l := Red.Of(Printable("red\x07")) + "plain" + Bold.Of("bold")
	require.Equal(t, "\x1b[31mred?\x1b[mpl\x1b[m", clip(l, 6))
	require.Equal(t, "\x1b[31mre\x1b[m", clip(l, 2))
	require.Empty(t, bare(clip(l, 0)))
	require.Equal(t, l, clip(l, 13))
	require.Equal(t, 13, width(l))
	require.Equal(t, "red?plainbold\nre\n", Text([]string{l}, 80)+Text([]string{l}, 2))
	require.Equal(t, "??[2J???", Printable("\x00\x1b[2Jé\u202e\n"))
}

func TestLine_HasWhatThereIsRoomFor(t *testing.T) {
	require.Equal(t, Bold.Of("a")+"bc", Fit(3, Bold.Of("a"), "bc", "d"))
	require.Equal(t, "abcdef", Fit(3, "abcdef", "g"), "its first part is there whole")
	require.Equal(t, Bold.Of("a")+"  ", Pad(Bold.Of("a"), 3))
	require.Equal(t, "abc", Pad("abc", 2))
	require.Empty(t, Blue.Of(""))
	require.Equal(t, "a", Plain.Of("a"))
}

// Without a terminal there is a size nevertheless.
func TestOpen_IsNilForAFile(t *testing.T) {
	terminal := Open(nil)
	require.Nil(t, terminal)
	columns, rows := terminal.Size()
	require.Equal(t, [2]int{80, 24}, [2]int{columns, rows})
}
