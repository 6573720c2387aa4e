//go:build !linux

package main

import (
	"errors"
	"os/exec"
	"time"
)

// Measurements need Linux. What is here lets the program build elsewhere.

func startChild(*exec.Cmd) error { return errors.ErrUnsupported }
func monotonic() time.Duration   { return time.Duration(time.Now().UnixNano()) }
func sleepUntil(t time.Duration) { time.Sleep(t - monotonic()) }
func cpuTime(int) time.Duration  { return 0 }
func allowedCPUs() []string      { return nil }
