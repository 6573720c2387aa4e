package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// terminal is a pseudo-terminal, with what a program has written to it.
type terminal struct {
	master, slave *os.File
	mu            sync.Mutex
	written       bytes.Buffer
}

func newTerminal(t *testing.T, columns, rows uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = slave.Close() })
	term := &terminal{master: master, slave: slave}
	term.resize(t, columns, rows)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			term.mu.Lock()
			term.written.Write(b[:n])
			term.mu.Unlock()
		}
	}()
	return term
}

func (t *terminal) resize(tb testing.TB, columns, rows uint16) {
	tb.Helper()
	require.NoError(tb, unix.IoctlSetWinsize(int(t.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
}

func (t *terminal) modes(tb testing.TB) *unix.Termios {
	tb.Helper()
	modes, err := unix.IoctlGetTermios(int(t.slave.Fd()), unix.TCGETS)
	require.NoError(tb, err)
	return modes
}

func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written.String()
}

// heads are the widths of the lists' heads in what was written after some of it.
func (t *terminal) heads(after int) (widths []int) {
	for part := range strings.SplitSeq(t.text()[after:], reverse) {
		if head, _, whole := strings.Cut(part, plainAgain); whole && strings.HasPrefix(head, "OLDEST") {
			widths = append(widths, cells(head))
		}
	}
	return widths
}

// However top ends, the terminal is as it was.
func TestTop_GivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
	locker := testbed.NewLocker(t, rdb)
	_, err := locker.TryAcquire(context.Background(), "order:1")
	require.NoError(t, err)
	beacon, err := ops.StartBeacon(rdb, ops.NewRecorder(), locker)
	require.NoError(t, err)
	t.Cleanup(func() { _ = beacon.Close() })
	for name, end := range map[string]func(*terminal, *os.Process) error{
		"q":       func(term *terminal, _ *os.Process) error { _, err := term.master.WriteString("xq"); return err },
		"Ctrl-C":  func(term *terminal, _ *os.Process) error { _, err := term.master.WriteString("\x03"); return err },
		"SIGTERM": func(_ *terminal, p *os.Process) error { return p.Signal(syscall.SIGTERM) },
		"SIGINT":  func(_ *terminal, p *os.Process) error { return p.Signal(syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := newTerminal(t, 80, 24)
			before := term.modes(t)
			cmd := exec.Command("perkey", "--redis", "redis://"+server.Addr, "top")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = term.slave, term.slave, term.slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			done, err := redistest.Spawn(cmd)
			require.NoError(t, err)
			defer func() { _ = cmd.Process.Kill() }()
			redistest.Eventually(t, func() bool { return len(term.heads(0)) > 0 }, "it draws")
			assert.True(t, strings.HasPrefix(term.text(), enterScreen))
			assert.Zero(t, term.modes(t).Lflag&unix.ECHO, "what is typed is not shown")
			assert.Equal(t, 80, term.heads(0)[0])
			drawn := len(term.text())
			term.resize(t, 120, 40)
			redistest.Eventually(t, func() bool { h := term.heads(drawn); return len(h) > 0 && h[len(h)-1] == 120 }, "it has the new size")

			require.NoError(t, end(term, cmd.Process))
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				require.Fail(t, "it does not end")
			}
			assert.True(t, cmd.ProcessState.Success(), "%s", cmd.ProcessState)
			redistest.Eventually(t, func() bool { return strings.HasSuffix(term.text(), leaveScreen) }, "it leaves the screen last")
			assert.Equal(t, before, term.modes(t))
		})
	}
}
