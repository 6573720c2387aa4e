package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/store"
)

func TestMessage_IsParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]store.Message{
		"grant 1:h/1/a.01234567 17 42 0 order 7": {Kind: store.Granted, Key: "order 7", Name: "1:h/1/a.01234567", Fence: 17, Claim: 42},
		"grant 1:h/1/a.01234567 17 42 1 k":       {Kind: store.Granted, Key: "k", Name: "1:h/1/a.01234567", Fence: 17, Claim: 42, Waiting: true},
		"grant 1:h/1/a.01234567 17 42 2 k":       {Kind: store.Granted, Key: "k", Name: "1:h/1/a.01234567", Fence: 17, Claim: 42, Room: true},
		"ends 1:h/1/a.01234567 250 order 7":      {Kind: store.Ends, Key: "order 7", Name: "1:h/1/a.01234567", Left: 250 * time.Millisecond},
		"wanted 5 order 7":                       {Kind: store.Wanted, Key: "order 7", Fence: 5},
		"reserved order 7":                       {Kind: store.Reserved, Key: "order 7"},
		"free order 7":                           {Kind: store.Freed, Key: "order 7"},
		"lost 17 order 7":                        {Kind: store.Forced, Key: "order 7", Fence: 17},
		"released 17 order 7":                    {Kind: store.Released, Key: "order 7", Fence: 17},
	} {
		got, ok := store.ParseMessage(text)
		require.True(t, ok, text)
		require.Equal(t, want, got, text)
	}
	// What is not whole, or of a newer version, is ignored.
	for _, text := range []string{
		"", "grant", "grant a 1 2 0", "grant a x 2 0 k", "grant a 1 x 0 k", "grant2 a 1 2 0 k", "ends a 5", "ends a x k", "lost 5", "lost x k", "released x k", "news k",
	} {
		_, ok := store.ParseMessage(text)
		require.False(t, ok, text)
	}
}
