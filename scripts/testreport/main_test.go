package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReport_ShowsFailuresAndCountsTests(t *testing.T) {
	in := strings.Join([]string{
		`{"Action":"build-output","ImportPath":"c","Output":"c.go:1: broken\n"}`,
		`{"Action":"output","Package":"a","Test":"TestX/embedded","Output":"=== RUN   TestX/embedded\n"}`,
		`{"Action":"output","Package":"a","Test":"TestX/embedded","Output":"a log line\n"}`,
		`{"Action":"pass","Package":"a","Test":"TestX/embedded"}`,
		`{"Action":"pass","Package":"a","Test":"TestX/real"}`,
		`{"Action":"skip","Package":"a","Test":"TestY"}`,
		`{"Action":"output","Package":"a","Output":"PASS\n"}`,
		`{"Action":"output","Package":"a","Output":"ok  \ta\t1.0s\n"}`,
		`{"Action":"output","Package":"b","Test":"TestZ","Output":"=== RUN   TestZ\n"}`,
		`{"Action":"pass","Package":"a"}`,
		`{"Action":"output","Package":"b","Test":"TestZ","Output":"    z_test.go:3: why\n"}`,
		`{"Action":"fail","Package":"b","Test":"TestZ"}`,
		`{"Action":"output","Package":"b","Output":"FAIL\tb\t1.0s\n"}`,
		`{"Action":"fail","Package":"b"}`,
		`not json`,
		``,
	}, "\n")
	var r report
	var out strings.Builder
	require.NoError(t, r.read(strings.NewReader(in), &out))
	require.Equal(t, "c.go:1: broken\nok  \ta\t1.0s\n    z_test.go:3: why\nFAIL\tb\t1.0s\nnot json\n", out.String())
	r.ended = nil
	require.Equal(t, report{passed: 2, failed: 1, skipped: 1, embedded: 1, real: 1, failedPackages: 1}, r)
}

// go test tells of a timeout in the name of the test that said something last, which may have passed.
func TestReport_NamesTheTestsThatDidNotEnd(t *testing.T) {
	var in strings.Builder
	for _, e := range []event{
		{Action: "run", Test: "TestHangs"},
		{Action: "pause", Test: "TestHangs"},
		{Action: "run", Test: "TestLater"},
		{Action: "pause", Test: "TestLater"},
		{Action: "run", Test: "TestLast"},
		{Action: "cont", Test: "TestHangs"},
		{Action: "run", Test: "TestHangs/real"},
		{Action: "output", Test: "TestLast", Output: "--- PASS: TestLast (0.10s)\n"},
		{Action: "output", Test: "TestLast", Output: "panic: test timed out after 1s\n"},
		{Action: "output", Test: "TestLast", Output: "\trunning tests:\n"},
		{Action: "output", Test: "TestLast", Output: "\n"},
		{Action: "output", Test: "TestLast", Output: "goroutine 1 [chan receive]:\n"},
		{Action: "output", Test: "TestLast", Output: "testing.tRunner.func1()\n"},
		{Action: "output", Test: "TestLast", Output: "\n"},
		{Action: "output", Test: "TestLast", Output: "goroutine 2 [chan receive]:\n"},
		{Action: "output", Test: "TestLast", Output: "\t/somewhere/x_test.go:4\n"},
		{Action: "output", Test: "TestLast", Output: "\n"},
		{Action: "output", Test: "TestLast", Output: "goroutine 3 [select]:\n"},
		{Action: "output", Test: "TestLast", Output: "github.com/hibiken/asynq.(*Server).Shutdown()\n"},
		{Action: "pass", Test: "TestLast"},
		{Action: "output", Output: "FAIL\tp\t1.0s\n"},
		{Action: "fail"},
	} {
		e.Package = "p"
		line, err := json.Marshal(e)
		require.NoError(t, err)
		in.Write(append(line, '\n'))
	}
	var r report
	var out strings.Builder
	require.NoError(t, r.read(strings.NewReader(in.String()), &out))
	require.Equal(t, "panic: test timed out after 1s\n\trunning tests:\n\n"+
		"goroutine 2 [chan receive]:\n\t/somewhere/x_test.go:4\n\n"+
		"FAIL\tp\t1.0s\nand 2 goroutines of others\ndid not end: p TestHangs\n", out.String())
	require.Equal(t, 1, r.failedPackages)
}

func TestReport_ListsTheSlowest(t *testing.T) {
	in := strings.Join([]string{
		`{"Action":"pass","Package":"a","Test":"TestX/embedded","Elapsed":1.5}`,
		`{"Action":"fail","Package":"b","Test":"TestX","Elapsed":0.5}`,
		`{"Action":"pass","Package":"a","Test":"TestX","Elapsed":2}`,
		`{"Action":"pass","Package":"a","Test":"TestY","Elapsed":0.1}`,
		`{"Action":"pass","Package":"a","Elapsed":3}`,
	}, "\n")
	var r report
	var out strings.Builder
	require.NoError(t, r.read(strings.NewReader(in), io.Discard))
	r.showSlowest(&out, 3)
	require.Equal(t, "   3.00s a \n   1.50s a TestX/embedded\n   0.50s b TestX\n", out.String())
	r.showSlowest(io.Discard, 100)
}

// A race is told in the name of the test that said something last.
func TestReport_ShowsRacesThatAPassingTestTells(t *testing.T) {
	in := strings.Join([]string{
		`{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"WARNING: DATA RACE\n"}`,
		`{"Action":"output","Package":"q","Test":"TestB","Output":"a log line\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"Read at 0x1 by goroutine 7:\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"a log line\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestA"}`,
		``,
	}, "\n")
	var r report
	require.NoError(t, r.read(strings.NewReader(in), io.Discard))
	require.Equal(t, []string{"WARNING: DATA RACE\n", "Read at 0x1 by goroutine 7:\n"}, r.races)
}
