//go:build !unix

package main

import "os"

var passedOn = []os.Signal{os.Interrupt}

// fromTerminal: the console tells all of its processes.
func fromTerminal(os.Signal) bool { return true }

func terminate(p *os.Process) { _ = p.Kill() }

func statusOf(s *os.ProcessState) int { return s.ExitCode() }
