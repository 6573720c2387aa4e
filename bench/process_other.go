//go:build !linux

package main

import (
	"errors"
	"os/exec"
	"time"
)

func createBoard(string) error { return errors.ErrUnsupported }

func openBoard(string) (*board, error) { return nil, errors.ErrUnsupported }

func monotonic() time.Duration { return time.Duration(time.Now().UnixNano()) }

func sleepUntil(t time.Duration) { time.Sleep(t - monotonic()) }

func sharpTimers() {}

func cpuTime() time.Duration { return 0 }

func dieWithParent(*exec.Cmd) {}
