//go:build unix

package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

func windowSize(f *os.File) (columns, rows int, err error) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, err
	}
	return int(size.Col), int(size.Row), nil
}
