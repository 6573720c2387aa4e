package main

import (
	"errors"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startChild starts cmd, which the kernel kills with the thread that started it: the runtime ends no thread before the
// process.
func startChild(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Start()
}

// monotonic is a time that all processes agree on.
func monotonic() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

// cpuTime is what a process has used, this one if pid is 0.
func cpuTime(pid int) time.Duration {
	const ofAllThreads = 2 // see clock_getcpuclockid(3)
	return clock(int32(^pid<<3 | ofAllThreads))
}

func clock(id int32) time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(id, &now)
	return time.Duration(now.Nano())
}

// sleepUntil is more exact than a timer of the runtime, which is late by up to a
// millisecond in an idle process. It wants a thread of its own.
func sleepUntil(t time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	at := unix.NsecToTimespec(int64(t))
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil)
	}
}

// allowedCPUs lists the CPUs that this process may run on.
func allowedCPUs() (cpus []string) {
	var set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &set)
	for cpu := range 64 * len(set) {
		if set.IsSet(cpu) {
			cpus = append(cpus, strconv.Itoa(cpu))
		}
	}
	return cpus
}
