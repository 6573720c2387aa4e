package store_test

import (
	"fmt"
	"maps"
	"reflect"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// bounded are calls that take a key, with their arguments after the bound.
var bounded = map[string]struct {
	script string
	rest   []any
}{
	"a free key":              {"acquire", nil},
	"a free key, named":       {"acquire", []any{"x"}},
	"a place in the queue":    {"acquire", []any{"x", "@", ""}},
	"for parked work":         {"acquire", []any{"x", "", "", 5000}},
	"on a Cluster":            {"acquire", []any{"x", "", "", 0, 1}},
	"for parked work, on one": {"acquire", []any{"x", "", "", 5000, 1}},
	"several keys":            {"acquireall", []any{"x"}},
	"an admission":            {"admit", []any{"0:a.follower", 1000, "x"}},
	"a reservation":           {"reserve", nil},
}

// wrongBounds says what is wrong with these scripts' bounds: "" if nothing is.
func wrongBounds(t *testing.T, rdb *redis.Client, sources map[string]string, prefix string) (wrong string) {
	t.Helper()
	ctx := t.Context()
	for name, call := range bounded {
		key := store.RecordName(prefix, name)
		for _, holder := range []string{"", holderToken, strangerToken} {
			for _, late := range []int64{1, 100_000, 0, -60_000} {
				require.NoError(t, rdb.Del(ctx, key).Err())
				if holder != "" {
					require.NoError(t, rdb.Eval(ctx, store.Sources["acquire"], []string{key}, holder, 60000, 0).Err())
				}
				before := contents(t, rdb, key)
				bound := int64(0)
				if late != 0 {
					bound = rdb.Time(ctx).Val().UnixMilli() - late
				}
				reply, err := rdb.Eval(ctx, sources[call.script], []string{key}, append([]any{strangerToken, 10000, bound}, call.rest...)...).Result()
				require.NoError(t, err, name)
				its, _ := reply.([]any)
				refused := len(its) == 4 && its[0] == int64(2) && its[2].(int64) >= bound+late
				if refused != (late > 0) || refused && !reflect.DeepEqual(contents(t, rdb, key), before) {
					return fmt.Sprintf("%s, %d ms late, held by %q: %v", name, late, holder, reply)
				}
			}
		}
	}
	return ""
}

func TestLate_WhatIsPastItsBoundChangesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		require.Empty(t, wrongBounds(t, rdb, store.Sources, env.Prefix))
		mutants := map[string][2]string{
			"nothing is late":       {"if ARGV[3] - now < 0 and", "if false and"},
			"no bound is late":      {" and ARGV[3] ~= '0' then\n  return {2", " then\n  return {2"},
			"all is late":           {"ARGV[3] - now < 0", "true"},
			"it is late afterwards": {"ARGV[3] - now < 0", "now - ARGV[3] < 0"},
		}
		for _, script := range []string{"acquire", "acquireall", "admit", "reserve"} {
			requireCaught(t, store.Sources[script], func(t *testing.T, broken string) string {
				sources := maps.Clone(store.Sources)
				sources[script] = broken
				return wrongBounds(t, rdb, sources, env.Prefix)
			}, mutants)
		}
	})
}

func TestLate_AReleaseTellsTheClock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s, _ := deploymentOn(t, env.Client(t), env.Prefix)
		record := store.RecordName(env.Prefix, "k")
		require.Zero(t, store.ClockOf(s, record))
		_, err := s.Release(t.Context(), store.ReleaseRequest{Record: record, Token: holderToken, Requeue: store.Requeue{Other: strangerToken, Mark: store.Polls}})
		require.NoError(t, err)
		require.NotZero(t, store.ClockOf(s, record))
	})
}
