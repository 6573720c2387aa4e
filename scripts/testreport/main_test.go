package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportShowsFailuresAndVerdictsAndCountsTests(t *testing.T) {
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

func TestReportListsTheSlowest(t *testing.T) {
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

func TestOnlyTestsThatFailedByThemselvesRunAgain(t *testing.T) {
	failed := `{"Action":"fail","Package":"p","Test":"TestA/real"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`
	for input, want := range map[string]string{
		failed: "p TestA\n",
		failed + `{"Action":"output","Package":"p","Output":"WARNING: DATA RACE"}` + "\n": "",
		failed + `{"Action":"fail","Package":"q"}` + "\n":                                 "",
		"": "",
	} {
		var r report
		require.NoError(t, r.read(strings.NewReader(input), io.Discard))
		require.Equal(t, want, r.toRunAgain(), input)
	}
}
