package unixms_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/unixms"
)

func TestTime_IsWhatOfWasMadeOf(t *testing.T) {
	t.Parallel()
	require.Zero(t, unixms.Of(time.Time{}))
	require.True(t, unixms.Time(0).IsZero())
	at := time.Date(2030, 1, 2, 3, 4, 5, 678_999_999, time.UTC)
	require.Equal(t, int64(1893553445678), unixms.Of(at))
	require.True(t, at.Truncate(time.Millisecond).Equal(unixms.Time(unixms.Of(at))))
}
