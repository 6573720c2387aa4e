package delayqueue_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What a result is sealed with is the whole identity of its message.
func TestResult_ASealedResultIsOpened(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithEncryption(delayqueue.Keyring{
			Current: "k1", Keys: map[string][]byte{"k1": bytes.Repeat([]byte{7}, 32)},
		}))
		b.start(func(ctx context.Context, _ delayqueue.Message) error {
			return delayqueue.SetResult(ctx, []byte("an answer"))
		})
		id := b.enqueue(delayqueue.Job{Key: "k", Name: "n", Principal: "me"})
		b.reaches(id, delayqueue.StateDone)
		result, err := b.queue.Result(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "an answer", string(result))
	})
}
