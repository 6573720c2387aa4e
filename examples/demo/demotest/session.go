package main

import (
	"context"
	"os"
	"os/exec"

	"github.com/creack/pty"
)

// session is the demo in a terminal.
type session struct {
	cmd      *exec.Cmd
	terminal *os.File
	output   chan []byte // closed when it has ended
}

// start starts the demo in a window of that size.
func start(ctx context.Context, demo string, columns, rows uint16, env ...string) (*session, error) {
	cmd := exec.CommandContext(ctx, demo)
	cmd.Env = append(os.Environ(), env...)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: columns, Rows: rows})
	if err != nil {
		return nil, err
	}
	s := &session{cmd: cmd, terminal: terminal, output: make(chan []byte)}
	go func() {
		defer close(s.output)
		for {
			buffer := make([]byte, 64<<10)
			n, err := terminal.Read(buffer)
			if n > 0 {
				s.output <- buffer[:n]
			}
			if err != nil { // on Linux an input/output error says that it has ended
				return
			}
		}
	}()
	return s, nil
}

func (s *session) resize(columns, rows uint16) error {
	return pty.Setsize(s.terminal, &pty.Winsize{Cols: columns, Rows: rows})
}

// interrupt types Ctrl-C.
func (s *session) interrupt() { _, _ = s.terminal.Write([]byte{3}) }

// wait waits for the demo to end, when its output has been read.
func (s *session) wait() error {
	defer func() { _ = s.terminal.Close() }()
	return s.cmd.Wait()
}
