package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuote_IsPlainAndCanBeReadBack(t *testing.T) {
	for _, s := range []string{"", "a", "a b", `"`, `\`, "\x1b[31m", "\u202e", "\u009b", "\xff", "<b>", "ключ", "\U0001F600", strings.Repeat("k", 512), "'", "\ufffd"} {
		shown := quote(s)
		require.Equal(t, shown, printable(shown), "nothing is left to escape")
		back, err := unquotedText(shown)
		require.NoError(t, err)
		require.Equal(t, s, back)
	}
	require.Equal(t, "order:1", quote("order:1"))
	require.Equal(t, `a\x1b[31mb\xffc`+"\n", printable("a\x1b[31mb\xffc\n"))
	require.Equal(t, `a\x1b[31mb\nc`, oneLine("a\x1b[31mb\nc"))
	for key, want := range map[string]string{
		"order:1": "order:1", "a<b": "'a<b'", "-x": `-q '"-x"'`, "it's": `-q '"it\x27s"'`, "a b": `-q '"a b"'`, "$(x)": "'$(x)'",
	} {
		require.Equal(t, want, shell(key))
	}
}

func TestSpan_IsShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0ms", 12 * time.Millisecond: "12ms", 9900 * time.Millisecond: "9.9s", 42 * time.Second: "42s", 245 * time.Second: "4m05s",
		26 * time.Hour: "26h00m", 60 * time.Hour: "2d",
	} {
		require.Equal(t, want, span(d))
	}
	now := time.Now()
	require.Equal(t, "-", ago(time.Time{}, now))
	require.Equal(t, "in 42s", ago(now.Add(42*time.Second), now))
	require.Equal(t, "42s ago", ago(now.Add(-42*time.Second), now))
}

func TestTable_AlignsItsColumns(t *testing.T) {
	var out bytes.Buffer
	(&tool{out: &out}).table(row{"A", "COUNT", "NAME"}, []row{{"long", "1", "x"}, {"é", "1234567", ""}}, 1)
	require.Equal(t, "A       COUNT  NAME\nlong        1  x\né     1234567\n", out.String())
}

func TestJSON_EscapesWhatIsNotPrintable(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, (&tool{out: &out}).json(keyOf("<a>\u202e\u009b\U000e0001\xff")))
	require.Equal(t, `{"key":"<a>\u202e\u009b\udb40\udc01\ufffd","key_base64":"PGE+4oCuwpvzoICB/w=="}`+"\n", out.String()) //nolint:testifylint // how it is written matters
}
