package redistest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Password is that of the users that AddUser adds.
const Password = "secret"

// Rights are those that docs/operations.md prints for these uses, and for this version
// of Redis, in the words of ACL SETUSER. The prefix in them is the default one.
func Rights(t testing.TB, uses ...string) (rights []string) {
	t.Helper()
	table := rightsTable(t)
	switch {
	case isVersion("6."):
		uses = append(uses, "Redis 6.2")
	case !isVersion("7.0."):
		uses = append(uses, "Redis 7.2 and later")
	}
	for _, use := range uses {
		require.Contains(t, table, use, "docs/operations.md")
		rights = append(rights, table[use]...)
	}
	return rights
}

// rightsTable reads the table: a line of it has a use and its rights, or more rights of the use above.
func rightsTable(t testing.TB) map[string][]string {
	t.Helper()
	const name = "docs/operations.md"
	dir, err := os.Getwd()
	require.NoError(t, err)
	for dir != filepath.Dir(dir) && !exists(filepath.Join(dir, name)) {
		dir = filepath.Dir(dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "\n## The smallest rights\n")
	section, _, _ = strings.Cut(section, "\n## ")
	table, use := map[string][]string{}, ""
	for line := range strings.Lines(section) {
		cells, ok := strings.CutPrefix(line, "    ")
		at := strings.IndexAny(cells, "~&+")
		if !ok || at < 0 || strings.HasPrefix(cells, "ACL SETUSER") {
			continue
		}
		if label := strings.TrimSpace(cells[:at]); label != "" {
			use = label
		}
		table[use] = append(table[use], strings.Fields(cells[at:])...)
	}
	return table
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// AddUser gives a server a user with these rights alone.
func AddUser(t testing.TB, admin redis.UniversalClient, name string, rights []string) {
	t.Helper()
	eachNode(t, admin, func(ctx context.Context, node *redis.Client) error {
		user := []any{"acl", "setuser", name, "on", ">" + Password, "resetchannels"}
		for _, right := range rights {
			user = append(user, right)
		}
		return node.Do(ctx, user...).Err()
	})
}

// Denied lists what the server denied, by its ACL LOG.
func Denied(t testing.TB, admin redis.UniversalClient) (objects []string) {
	t.Helper()
	eachNode(t, admin, func(ctx context.Context, node *redis.Client) error {
		entries, err := node.ACLLog(ctx, 100).Result()
		for _, entry := range entries {
			objects = append(objects, entry.Object)
		}
		return err
	})
	return objects
}

// RequireUsed requires that the server has run every command of these rights, but for those that are seldom used.
func RequireUsed(t testing.TB, admin *redis.Client, rights []string, seldom map[string]string) {
	t.Helper()
	stats := admin.Info(t.Context(), "commandstats").Val()
	for _, right := range rights {
		command, ok := strings.CutPrefix(right, "+")
		if ok && seldom[command] == "" && !strings.Contains(command, "|") {
			require.Contains(t, stats, "cmdstat_"+command+":", "nothing less would do")
		}
	}
}

// eachNode calls do for the server, or for each primary of a Cluster, one at a time.
func eachNode(t testing.TB, rdb redis.UniversalClient, do func(context.Context, *redis.Client) error) {
	t.Helper()
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		require.NoError(t, do(t.Context(), rdb.(*redis.Client)))
		return
	}
	var mu sync.Mutex
	require.NoError(t, cluster.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		return do(ctx, node)
	}))
}
