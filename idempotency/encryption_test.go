package idempotency_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b, 0xff}, 16) }

func ring(current string, keys map[string][]byte) idempotency.Keyring {
	return delayqueue.Keyring{Current: current, Keys: keys} // one type: a service has one
}

// finished is work that s finished with the outcome "secret".
func finished(t *testing.T, s *idempotency.Store, name string) idempotency.Work {
	t.Helper()
	w := idempotency.Work{Name: name, Fingerprint: "a"}
	_, err := s.Begin(t.Context(), w, 1)
	require.NoError(t, err)
	require.NoError(t, s.Finish(t.Context(), w, 1, []byte("secret")))
	return w
}

func requireOpens(t *testing.T, s *idempotency.Store, w idempotency.Work) {
	t.Helper()
	outcome, err := s.Begin(t.Context(), w, 2)
	require.NoError(t, err)
	require.Equal(t, "secret", string(outcome))
	for _, w := range []idempotency.Work{w, {Name: w.Name}} {
		found, err := s.Lookup(t.Context(), w)
		require.NoError(t, err)
		require.Equal(t, "secret", string(found.Outcome))
	}
}

// requireSealed wants that nothing is known of the outcome but that there is one: the work does not run again.
func requireSealed(t *testing.T, s *idempotency.Store, w idempotency.Work, why string) {
	t.Helper()
	outcome, err := s.Begin(t.Context(), w, 2)
	require.Nil(t, outcome)
	found, lookupErr := s.Lookup(t.Context(), w)
	require.True(t, found.Found)
	require.Nil(t, found.Outcome)
	for _, err := range []error{err, lookupErr} {
		require.ErrorIs(t, err, idempotency.ErrSealed)
		require.ErrorIs(t, err, delayqueue.ErrSealed)
		require.NotErrorIs(t, err, core.ErrUnavailable)
		require.ErrorContains(t, err, why)
		require.NotContains(t, err.Error(), "secret")
		require.NotContains(t, fmt.Sprintf("%+v %#v", err, err), "k\xffk\xff")
	}
}

func TestEncryption_LawsHold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s, rdb := newStore(t, env, idempotency.WithTTL(time.Hour), idempotency.WithEncryption(ring("k", map[string][]byte{"k": key('k')})))
		require.NoError(t, checkLaws(t.Context(), s, rdb, env.Prefix))
	})
}

func TestEncryption_KeysRotate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		one, two := map[string][]byte{"k1": key('k')}, map[string][]byte{"k2": key('l')}
		both := map[string][]byte{"k1": key('k'), "k2": key('l')}
		store := func(keys idempotency.Keyring) *idempotency.Store {
			s, _ := newStore(t, env, idempotency.WithEncryption(keys))
			return s
		}
		before, during, turned, after := store(ring("k1", one)), store(ring("k1", both)), store(ring("k2", both)), store(ring("k2", two))
		old := finished(t, before, "old")
		_, rdb := newStore(t, env)
		stored, err := rdb.HGet(t.Context(), env.Prefix+":idem{}:old", "outcome").Result()
		require.NoError(t, err)
		require.NotContains(t, stored, "secret")
		for _, s := range []*idempotency.Store{before, during, turned} {
			requireOpens(t, s, old)
		}
		requireSealed(t, after, old, `add key "k1" to the Keyring`)
		fresh := finished(t, turned, "new")
		for _, s := range []*idempotency.Store{during, turned, after} {
			requireOpens(t, s, fresh)
		}
		requireSealed(t, before, fresh, `add key "k2" to the Keyring`)
		requireSealed(t, store(ring("k2", map[string][]byte{"k2": key('m')})), fresh, `sealed under another key "k2"`)
	})
}

func TestEncryption_IsSwitchedOn(t *testing.T) {
	env := redistest.Embedded(t)
	plain, _ := newStore(t, env)
	keys := ring("k", map[string][]byte{"k": key('k')})
	strict, _ := newStore(t, env, idempotency.WithEncryption(keys))
	keys.AcceptUnsealed = true
	both, _ := newStore(t, env, idempotency.WithEncryption(keys))
	old := finished(t, plain, "old")
	requireOpens(t, both, old)
	requireSealed(t, strict, old, "it is not sealed")
	fresh := finished(t, both, "new")
	requireOpens(t, strict, fresh)
	requireSealed(t, plain, fresh, `add key "k" to the Keyring`)
}

// Replicas of each deployment run beside those of the one before, and each opens what the other has stored.
func TestEncryption_IsSwitchedOnByDeployments(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		keys := map[string][]byte{"k": key('k')}
		old, rdb := newStore(t, env)
		known, _ := newStore(t, env, idempotency.WithEncryption(idempotency.Keyring{Keys: keys, AcceptUnsealed: true}))
		seals, _ := newStore(t, env, idempotency.WithEncryption(idempotency.Keyring{Current: "k", Keys: keys, AcceptUnsealed: true}))
		strict, _ := newStore(t, env, idempotency.WithEncryption(ring("k", keys)))
		for i, pair := range [][2]*idempotency.Store{{old, known}, {known, seals}, {seals, strict}} {
			for j, s := range pair {
				w := finished(t, s, fmt.Sprintf("%d-%d", i, j))
				requireOpens(t, pair[0], w)
				requireOpens(t, pair[1], w)
			}
		}
		stored := func(name string) string { return rdb.HGet(t.Context(), env.Prefix+":idem{}:"+name, "outcome").Val() }
		require.Equal(t, "secret", stored("0-1"), "keys that are known seal nothing yet")
		require.NotEmpty(t, stored("1-1"))
		require.NotContains(t, stored("1-1"), "secret")
	})
}

func TestEncryption_BindsAnOutcomeToItsRecord(t *testing.T) {
	env := redistest.Embedded(t)
	s, rdb := newStore(t, env, idempotency.WithEncryption(ring("k", map[string][]byte{"k": key('k')})))
	a, b := finished(t, s, "a"), finished(t, s, "b")
	at := func(w idempotency.Work) string { return env.Prefix + ":idem{}:" + w.Name }
	stored, err := rdb.HGet(t.Context(), at(a), "outcome").Bytes()
	require.NoError(t, err)
	require.NoError(t, rdb.HSet(t.Context(), at(b), "outcome", stored).Err())
	requireSealed(t, s, b, "of another record")
	require.NoError(t, rdb.HSet(t.Context(), at(a), "fingerprint", "other").Err())
	requireSealed(t, s, idempotency.Work{Name: "a", Fingerprint: "other"}, "of another record")
	require.NoError(t, rdb.HSet(t.Context(), at(a), "fingerprint", "a").Err())
	for i := range stored {
		damaged := bytes.Clone(stored)
		damaged[i] ^= 1
		require.NoError(t, rdb.HSet(t.Context(), at(a), "outcome", damaged).Err())
		requireSealed(t, s, a, "")
	}
}

func TestEncryption_MistakesAreErrorsAtConstruction(t *testing.T) {
	for name, keys := range map[string]idempotency.Keyring{
		"no keys": {}, "no current": ring("", map[string][]byte{"k": key('k')}), "short": ring("k", map[string][]byte{"k": key('k')[:31]}),
		"a key as current": ring(string(key('k')), map[string][]byte{"k": key('k')}),
	} {
		_, rdb := newStore(t, redistest.Embedded(t))
		_, err := idempotency.New(rdb, idempotency.WithEncryption(keys))
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		require.ErrorContains(t, err, "WithEncryption", name)
		require.NotContains(t, err.Error(), "k\xffk\xff", name)
	}
}
