package keytext_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/keytext"
)

func TestCut_IsValidAndWithinItsBound(t *testing.T) {
	t.Parallel()
	const most = 4096
	for s, want := range map[string]string{
		"":                             "",
		"short \xff":                   "short \uFFFD",
		strings.Repeat("a", most+1):    strings.Repeat("a", most),
		strings.Repeat("a\xff", most):  strings.Repeat("a\uFFFD", most/4),
		strings.Repeat("\xff", most+1): "\uFFFD",
		strings.Repeat("é", most):      strings.Repeat("é", most/2),
	} {
		got := keytext.Cut(s, most)
		require.Equal(t, want, got)
		require.LessOrEqual(t, len(got), most)
		require.True(t, utf8.ValidString(got))
	}
	require.Equal(t, "aé", keytext.Cut("aéé", 4), "no half of a letter")
}
