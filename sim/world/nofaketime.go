//go:build !faketime

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "world: it is built and started by: go run ./sim")
	os.Exit(2)
}
