// Package browsertest tests package console in a real browser: Debian's chromium-headless-shell. It is a module of its own, so
// that chromedp is nobody's dependency but its.
package browsertest
