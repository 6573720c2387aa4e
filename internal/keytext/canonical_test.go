package keytext_test

import (
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/keytext"
)

func TestInt_OneNumberIsWrittenInOneWay(t *testing.T) {
	long := strings.Repeat("9", 100)
	for s, want := range map[string]string{
		"42": "42", "042": "42", "+42": "42", "+0042": "42", "-42": "-42", "-007": "-7", "0": "0", "-0": "0", "+000": "0", "000" + long: long,
	} {
		got, err := keytext.Int(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "+", "-", "+-1", "--1", " 42", "42 ", "42.0", "4e1", "0x2A", "4_2", "٤٢", "a" + testSecret} {
		_, err := keytext.Int(s)
		require.EqualError(t, err, "not a whole number", s)
	}
}

const testSecret = "geheim"

func FuzzInt(f *testing.F) {
	f.Add("042", "42")
	f.Add("-0", "+0")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, errX := keytext.Int(a)
		y, errY := keytext.Int(b)
		if errX != nil || errY != nil {
			return
		}
		// big.Int takes more than Int does, and what both take they take alike.
		m, ok := new(big.Int).SetString(a, 10)
		require.True(t, ok)
		n, ok := new(big.Int).SetString(b, 10)
		require.True(t, ok)
		require.Equal(t, m.Cmp(n) == 0, x == y, "%q %q", a, b)
		require.Equal(t, m.String(), x)
	})
}

func TestUUID_OneIsWrittenInOneWay(t *testing.T) {
	const want = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
	for _, s := range []string{
		want, strings.ToUpper(want), strings.ReplaceAll(want, "-", ""), "{" + want + "}", "urn:uuid:" + want, "URN:UUID:" + strings.ToUpper(want),
	} {
		got, err := keytext.UUID(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{
		"", "{", "{}", "urn:uuid:", want + " ", " " + want, want[1:], want + "0", "(" + want + ")", "f81d-4fae-7dec-11d0-a765-00a0-c91e-6bf6",
		strings.Replace(want, "f", "g", 1), strings.Replace(want, "-", "+", 1),
	} {
		_, err := keytext.UUID(s)
		require.EqualError(t, err, "not a UUID", s)
	}
}
