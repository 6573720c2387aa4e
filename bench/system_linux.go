package main

import (
	"errors"
	"fmt"
	"os"
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
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
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

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var use unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &use)
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// allowedCPUs lists the CPUs that this process may run on.
func allowedCPUs() (cpus []int) {
	var set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &set)
	for cpu := range 64 * len(set) {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// pin binds the threads of a process to CPUs. Threads that start later are bound as those that start them.
func pin(pid int, cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		// A thread that ended meanwhile needs no CPU.
		if e := unix.SchedSetaffinity(id, &set); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("bind a thread to CPUs %v: %w", cpus, e))
		}
	}
	return err
}
