package keyring

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// Package delayqueue's tests have the rest.
func TestSealer_HeaderIsAuthenticated(t *testing.T) {
	s, err := New(Keyring{Current: "k", Keys: map[string][]byte{"k": bytes.Repeat([]byte("k"), KeyLen)}})
	require.NoError(t, err)
	s.keys["j"] = s.keys["k"] // Check forbids it; the id must count all the same
	sealed := s.Seal([]byte("work"), "a", "b")
	opened, err := s.Open(sealed, "a", "b")
	require.NoError(t, err)
	require.Equal(t, "work", string(opened))
	sealed[len(Magic)+2] = 'j'
	_, err = s.Open(sealed, "a", "b")
	require.ErrorIs(t, err, ErrSealed)
}

func TestSealer_BindsWhatItBelongsTo(t *testing.T) {
	s, err := New(Keyring{Current: "k", Keys: map[string][]byte{"k": bytes.Repeat([]byte("k"), KeyLen)}})
	require.NoError(t, err)
	sealed := s.Seal([]byte("work"), "a", "bc")
	for _, of := range [][]string{nil, {"a"}, {"ab", "c"}, {"a", "bc", ""}, {"bc", "a"}} {
		_, err := s.Open(sealed, of...)
		require.ErrorIs(t, err, ErrSealed, "%q", of)
	}
}
