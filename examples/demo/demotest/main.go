// Command demotest records the demo in a terminal: as an asciicast (version 2, for asciinema and
// its player), and as a picture that moves, for pages that play no casts. Its tests look at the demo in terminals of several sizes.
//
//	go run . -cast ../../../docs/demo.cast -svg ../../../docs/demo.svg
//
// It is a module of its own, for its terminal.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

func main() {
	castFile := flag.String("cast", "demo.cast", "`file` for the asciicast")
	svgFile := flag.String("svg", "demo.svg", "`file` for the picture")
	length := flag.Duration("for", time.Minute, "how long to record")
	loop := flag.Duration("loop", 15*time.Second, "how much of it the picture shows, again and again")
	flag.Parse()
	if err := record(context.Background(), *castFile, *svgFile, *length, *loop); err != nil {
		fmt.Fprintln(os.Stderr, "demotest:", err)
		os.Exit(1)
	}
}

func record(ctx context.Context, castFile, svgFile string, length, loop time.Duration) error {
	dir, err := os.MkdirTemp("", "demo")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	demo, err := build(ctx, dir)
	if err != nil {
		return err
	}
	s, err := start(ctx, demo, 80, 24, "TERM=xterm-256color", "NO_COLOR=")
	if err != nil {
		return err
	}
	c := cast{columns: 80, rows: 24}
	began := time.Now()
	ending := time.AfterFunc(length, s.interrupt)
	defer ending.Stop()
	for data := range s.output {
		c.events = append(c.events, event{time.Since(began), string(data)})
	}
	if err := s.wait(); err != nil {
		return err
	}
	data, err := c.encode()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(castFile, data, 0o644),
		os.WriteFile(svgFile, c.svg(loop), 0o644),
	)
}

// build builds the demo, from the main module, into dir.
func build(ctx context.Context, dir string) (demo string, err error) {
	demo = filepath.Join(dir, "demo")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", demo, ".")
	cmd.Dir = ".." // beside this module
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the demo: %w: %s", err, said)
	}
	return demo, nil
}
