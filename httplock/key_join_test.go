package httplock_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// IdempotencyKey is a part like any other: the rest of the key stays.
func TestJoin_KeepsPartsBesideIdempotencyKey(t *testing.T) {
	t.Parallel()
	shop := httplock.Header("shop:", "X-Shop")
	keyOf := func(key httplock.KeyFunc, shop, once string) string {
		b := testbed.New(t, redistest.Embedded(t)) // the same Idempotency-Key, for another key, would be refused
		var got string
		h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key, remembering(newIdempotency(t, b)))(
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if lease, held := core.LeaseFrom(r.Context()); held {
					got = lease.Key()
				}
			}))
		r := testbed.Request(t, http.MethodPost, "/", "")
		r.Header.Set("X-Shop", shop)
		r.Header.Set("Idempotency-Key", once)
		resp := testbed.Do(h, r)
		require.Equal(t, http.StatusOK, resp.Status, resp.Body)
		return got
	}
	for name, test := range map[string]struct {
		key  httplock.KeyFunc
		want func(own string) string
	}{
		"last":   {httplock.Join(shop, httplock.IdempotencyKey), func(own string) string { return "shop:a%7Cb|" + own }},
		"first":  {httplock.Join(httplock.IdempotencyKey, shop), func(own string) string { return own + "|shop:a%7Cb" }},
		"nested": {httplock.Join(shop, httplock.Join(httplock.IdempotencyKey, shop)), func(own string) string { return "shop:a%7Cb|" + own + "%7Cshop:a%257Cb" }},
		"twice":  {httplock.Join(httplock.IdempotencyKey, httplock.IdempotencyKey), func(own string) string { return own + "|" + own }},
		"hashed": {httplock.Hash(httplock.Join(shop, httplock.IdempotencyKey)), func(own string) string { return "shop:a%7Cb|" + own }},
	} {
		own := keyOf(httplock.IdempotencyKey, "a|b", name)
		require.NotEmpty(t, own)
		require.Equal(t, test.want(own), keyOf(test.key, "a|b", name), name)
	}
	long := keyOf(httplock.Hash(httplock.Join(shop, httplock.IdempotencyKey)), strings.Repeat("x", core.MaxKeyLen), "long")
	require.Contains(t, long, "~sha256:")
}

// A part that fails decides, wherever IdempotencyKey stands.
func TestJoin_PartBesideIdempotencyKeyFails(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	shop := httplock.Header("shop:", "X-Shop")
	for _, key := range []httplock.KeyFunc{httplock.Join(shop, httplock.IdempotencyKey), httplock.Join(httplock.IdempotencyKey, shop)} {
		h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key, remembering(newIdempotency(t, b)))(mustNotRun(t))
		testbed.RequireProblem(t, testbed.Do(h, withKey(t, "/", "k", "")), http.StatusBadRequest, "bad-key", false)
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, "/", ""), http.StatusBadRequest, "bad-key", false)
	}
	key := httplock.Join(httplock.IdempotencyKey, shop)
	h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key)(mustNotRun(t))
	r := withKey(t, "/", "k", "")
	r.Header.Set("X-Shop", "7")
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusInternalServerError, "internal", false)
}
