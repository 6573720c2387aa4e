package redistest

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Process is a process that works until its standard input ends.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	done   chan struct{} // closed when it ended
}

// StartProcess starts a binary, or this test's own if that is empty, with more
// variables in its environment. The process ends with the test.
func StartProcess(t testing.TB, binary string, env ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(cmp.Or(binary, os.Args[0]))}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.stderr
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	p.done, err = Spawn(p.cmd)
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kill ends the process with SIGKILL and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Signal sends a signal, unless the process has ended.
func (p *Process) Signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(s)
	}
}

// Finish has the process end its work, also if it is stopped. Wait waits for that.
func (p *Process) Finish() {
	p.Signal(syscall.SIGCONT)
	_ = p.stdin.Close()
}

// Wait fails the test unless the process ends well, within 2 minutes.
func (p *Process) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		p.Signal(syscall.SIGQUIT) // the runtime shows its goroutines
		<-p.done
		require.Fail(t, "a process does not end", p.stderr.String())
	}
	require.True(t, p.cmd.ProcessState.Success(), "%s: %s\n%s", p.cmd, p.cmd.ProcessState, &p.stderr)
}
