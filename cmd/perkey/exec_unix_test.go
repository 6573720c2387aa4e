//go:build unix

package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// A signal that comes between the grant and the start of the command is not lost.
func TestExec_StartsNothingAfterASignal(t *testing.T) {
	env := redistest.Embedded(t)
	locker := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix))
	lease := testbed.Take(t, locker, "k")
	var out bytes.Buffer
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err := (&tool{out: &out, errOut: &out}).run(stopped, lease, "/bin/sh", []string{"sh", "-c", "echo ran"}, time.Second)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, out.String())
	status, err := (&tool{out: &out, errOut: &out}).run(t.Context(), lease, "/bin/sh", []string{"sh", "-c", "echo ran; exit 7"}, time.Second)
	require.NoError(t, err)
	require.Equal(t, 7, status)
	require.Equal(t, "ran\n", out.String())
}
