package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// team is child processes that work for one contestant.
type team struct {
	name    string
	members []*member
	down    error // why it does not work any more
}

// member is a child process as its parent sees it.
type member struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers chan answer // closed when the process ended
}

// startTeam starts processes of e, each with that many workers, and waits until
// they are ready. The team is to be dismissed, also after an error.
func (b *bench) startTeam(e entrant, r role, processes int) (*team, error) {
	c := &team{name: e.name}
	r.Entrant = e.name
	r.Board = b.boardPath
	if r.Addr == "" {
		r.Addr = b.server.addr
	}
	if r.Lease == 0 {
		r.Lease = leaseTime
	}
	for range processes {
		m, err := b.start(r)
		if err != nil {
			return c, err
		}
		c.members = append(c.members, m)
	}
	_, err := c.collect(b.ctx, c.members, 20*time.Second)
	return c, err
}

func (b *bench) start(r role) (*member, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	m := &member{cmd: exec.Command(self), answers: make(chan answer, 1)}
	m.cmd.Env = append(os.Environ(), childVar+"="+string(text))
	m.cmd.Stderr = os.Stderr
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	if err := b.nursery.start(m.cmd); err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	go m.listen(out)
	return m, nil
}

func (m *member) listen(out io.Reader) {
	defer close(m.answers)
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			a.Err = fmt.Sprintf("a child said %q", line)
		}
		m.answers <- a
	}
}

// all gives every member the job, and collects the answers.
func (c *team) all(ctx context.Context, j job) ([]answer, error) {
	return c.some(ctx, c.members, j)
}

// some does so with some of them. Who does not answer in time is killed with the
// whole team: a contestant that hangs must not hang the run.
func (c *team) some(ctx context.Context, members []*member, j job) ([]answer, error) {
	if err := c.tell(members, j); err != nil {
		return nil, err
	}
	return c.collect(ctx, members, j.For+2*grace)
}

func (c *team) tell(members []*member, j job) error {
	if c.down != nil {
		return c.down
	}
	line, err := json.Marshal(j)
	if err != nil {
		return err
	}
	for _, m := range members {
		if _, err := m.stdin.Write(append(line, '\n')); err != nil {
			return c.fail(fmt.Errorf("tell a child: %w", err))
		}
	}
	return nil
}

func (c *team) collect(ctx context.Context, members []*member, within time.Duration) ([]answer, error) {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	answers := make([]answer, 0, len(members))
	for _, m := range members {
		select {
		case a, ok := <-m.answers:
			if !ok {
				return nil, c.fail(errors.New("a child ended"))
			}
			if a.Err != "" {
				return nil, c.fail(errors.New(a.Err))
			}
			answers = append(answers, a)
		case <-timeout.C:
			return nil, c.fail(fmt.Errorf("hangs: no answer within %v", within))
		case <-ctx.Done():
			return nil, c.fail(ctx.Err())
		}
	}
	return answers, nil
}

func (c *team) works() bool { return c.down == nil }

// fail ends the team.
func (c *team) fail(err error) error {
	c.down = err
	c.dismiss()
	return err
}

// dismiss ends the processes, and waits for them.
func (c *team) dismiss() {
	for _, m := range c.members {
		_ = m.stdin.Close()
	}
	for _, m := range c.members {
		killer := time.AfterFunc(2*time.Second, func() { _ = m.cmd.Process.Kill() })
		for range m.answers { // what it still says; it ends with the process
		}
		_ = m.cmd.Wait()
		killer.Stop()
	}
	c.members = nil
}

// nursery starts processes from one thread that lasts as long as the program:
// the kernel kills a child with the thread that started it.
type nursery struct {
	once   sync.Once
	births chan birth
}

type birth struct {
	cmd *exec.Cmd
	err chan error
}

func (n *nursery) start(cmd *exec.Cmd) error {
	n.once.Do(func() {
		n.births = make(chan birth)
		go func() {
			runtime.LockOSThread()
			for b := range n.births {
				dieWithParent(b.cmd)
				b.err <- b.cmd.Start()
			}
		}()
	})
	b := birth{cmd, make(chan error, 1)}
	n.births <- b
	return <-b.err
}
