//go:build !linux

package main

import "errors"

func allowedCPUs() []int { return nil }

func pin(int, []int, []int) error { return errors.ErrUnsupported }
