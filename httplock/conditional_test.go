package httplock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
)

func TestStoredHeaders(t *testing.T) {
	require.Equal(t, []string{
		"Accept", "Accept-Language", "Content-Encoding", "Content-Type", "Idempotency-Key",
		"If-Match", "If-Modified-Since", "If-None-Match", "If-Unmodified-Since", "Traceparent",
	}, httplock.StoredHeaders())
}
