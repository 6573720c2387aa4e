package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path"
	"strings"
)

// tracked lists the files that git has, and which are still there.
func tracked() ([]string, error) {
	out, err := exec.CommandContext(context.Background(), "git", "ls-files", "-z").Output()
	if err != nil {
		return nil, err
	}
	var files []string
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if _, err := os.Stat(name); err == nil {
			files = append(files, name)
		}
	}
	return files, nil
}

// countText counts lines of Go and words of Markdown.
func countText(files []string) ([]number, error) {
	var product, tests, words int
	for _, name := range files {
		kind := kindOf(name)
		if kind == other {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		switch kind {
		case productGo:
			product += bytes.Count(text, []byte("\n"))
		case testGo:
			tests += bytes.Count(text, []byte("\n"))
		case prose:
			words += len(bytes.Fields(text))
		}
	}
	return []number{{"product lines", product}, {"test lines", tests}, {"words of docs", words}}, nil
}

type kind int

const (
	other kind = iota
	productGo
	testGo
	prose
)

// kindOf says as what a file counts. Go of internal/test is for tests; that of bench, examples, scripts and sim counts as neither.
func kindOf(name string) kind {
	switch base := path.Base(name); {
	case strings.HasSuffix(base, ".md"):
		// A second point stands before a language: README.de.md.
		if strings.HasPrefix(base, "CHANGELOG") || strings.Count(base, ".") > 1 {
			return other
		}
		return prose
	case !strings.HasSuffix(base, ".go"):
		return other
	case strings.HasSuffix(base, "_test.go") || strings.HasPrefix(name, "internal/test/"):
		return testGo
	}
	switch top, _, _ := strings.Cut(name, "/"); top {
	case "bench", "examples", "scripts", "sim":
		return other
	}
	return productGo
}
