package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// createBoard makes the file that the processes of a run share.
func createBoard(path string) error {
	if err := os.WriteFile(path, make([]byte, unsafe.Sizeof(board{})), 0o600); err != nil {
		return fmt.Errorf("make shared memory: %w", err)
	}
	return nil
}

// openBoard maps it. It stays mapped until the process ends.
func openBoard(path string) (*board, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("share memory: %w", err)
	}
	defer func() { _ = f.Close() }()
	mem, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(board{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("share memory: %w", err)
	}
	return (*board)(unsafe.Pointer(&mem[0])), nil
}

// monotonic is a time that all processes agree on.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano())
}

// sleepUntil is more exact than a timer of the runtime, which is late by up to a
// millisecond in an idle process. It wants a thread of its own.
func sleepUntil(t time.Duration) {
	at := unix.NsecToTimespec(int64(t))
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil)
	}
}

// sharpTimers makes the kernel wake this thread on time.
func sharpTimers() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var use unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &use)
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// dieWithParent ends cmd with the thread that starts it.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
