package httplock_test

import (
	"net/http"
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

// A key that is shared in front cannot be had exclusively: two of them would wait for one another. The log says so.
func TestShared_InFrontOfExclusiveIsMisconfigured(t *testing.T) {
	b, said := testbed.New(t, redistest.Embedded(t)), &testbed.Log{}
	inner := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, httplock.WithLogger(said.Logger()))(mustNotRun(t))
	h := guarded(b.Locker.Guard(core.RejectConflicts, core.Shared()), inner.ServeHTTP)
	testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, ""), http.StatusInternalServerError, "misconfigured", false)
	require.Contains(t, said.String(), "misconfigured")
	require.Contains(t, said.String(), "take it exclusively in front")
}
