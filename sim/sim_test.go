package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/sim/plan"
)

func TestWorlds_FollowFromTheirSeed(t *testing.T) {
	t.Parallel()
	b, err := build(t.Context(), t.TempDir(), nil)
	require.NoError(t, err)
	built, err := os.ReadFile(string(b))
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	require.NotContains(t, string(built), filepath.Dir(here), "it would be another world elsewhere")
	elsewhere := binary(filepath.Join(t.TempDir(), "a longer name of the world"))
	require.NoError(t, os.Link(string(b), string(elsewhere)))
	orders := map[string]bool{}
	for seed := range uint64(6) {
		c := plan.Config{Seed: seed, Seconds: 60}
		once, _, err := b.play(c)
		require.NoError(t, err)
		require.Empty(t, once.Violations)
		c.Trace = true
		again, _, err := elsewhere.play(c)
		require.NoError(t, err)
		require.Equal(t, once.Digest, again.Digest, seed)
		require.NotContains(t, orders, once.Order)
		orders[once.Order] = true
	}
}

// What is planted in the sources is found, and found again in a smaller world.
func TestWorlds_FindWhatIsPlanted(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]struct{ world, file, old, is string }{
		"a second holder now and then":       {"locks", "core/internal/store/lua/queue.lua", "local function fits(n)\n", "local function fits(n)\n  if now % 7 == 0 then return true end\n"},
		"a response that is not found again": {"web", "idempotency/lua/begin.lua", "if was[3] then", "if was[3] and #was[3] % 3 == 0 then"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, err := filepath.Abs("../" + m.file)
			require.NoError(t, err)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(text), m.old))
			planted := filepath.Join(dir, "planted")
			require.NoError(t, os.WriteFile(planted, []byte(strings.Replace(string(text), m.old, m.is, 1)), 0o600))
			b, err := build(t.Context(), dir, map[string]string{path: planted})
			require.NoError(t, err)
			for seed := range uint64(40) {
				c := plan.Config{Seed: seed, World: m.world, Seconds: 60}
				r, _, err := b.play(c)
				require.NoError(t, err)
				if len(r.Violations) == 0 {
					continue
				}
				smaller, again, err := b.shrink(c)
				require.NoError(t, err)
				require.NotEqual(t, command(c), command(smaller))
				t.Log(command(smaller), again.Violations[0])
				return
			}
			t.Fatal("40 seeds find nothing")
		})
	}
}
