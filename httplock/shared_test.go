package httplock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestSafeMethods_AreEitherLockedOrShared(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	_, err := httplock.New(guard, httplock.WithLockedSafeMethods(), httplock.WithSharedSafeMethods())
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = httplock.New(guard, httplock.WithSharedSafeMethods(), httplock.WithLockedSafeMethods())
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = httplock.New(guard, httplock.WithLockedSafeMethods(), httplock.WithLockedSafeMethods())
	require.NoError(t, err)
}
