package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReadWhat_OfOtherVersionsAndClients(t *testing.T) {
	type read struct {
		name, id string
		ttl      time.Duration
	}
	for what, want := range map[string]read{
		"":                     {"", "", usualTTL},
		"name;id":              {"name", "id", usualTTL},
		"%3B;%3B;100":          {";", ";", 100 * time.Millisecond},
		"name;id;":             {"name", "id", 0},
		"name;id;9s":           {"name", "id", 0},
		"name;id;-1":           {"name", "id", 0},
		"name;id;100;more":     {"name", "id", 0},
		"name;id;100000000000": {"name", "id", 0},
	} {
		name, id, ttl := readWhat(what)
		require.Equal(t, want, read{name, id, ttl}, what)
	}
}
