//go:build !linux

package main

import (
	"errors"
	"os/exec"
	"time"
)

// Measurements need Linux. What is here lets the program build elsewhere.

func startChild(*exec.Cmd) error { return errors.ErrUnsupported }

func monotonic() time.Duration { return time.Duration(time.Now().UnixNano()) }

func sleepUntil(t time.Duration) { time.Sleep(t - monotonic()) }

func cpuTime() time.Duration { return 0 }

func allowedCPUs() []int { return nil }

func pin(int, []int) error { return errors.ErrUnsupported }
