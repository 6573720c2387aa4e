//go:build !unix

package main

import (
	"errors"
	"os"
)

// windowSize has no answer: the demo prints lines here.
func windowSize(*os.File) (columns, rows int, err error) { return 0, 0, errors.ErrUnsupported }

func notifyResize(chan<- os.Signal) {}
