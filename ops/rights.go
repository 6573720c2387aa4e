package ops

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// needed are the rights that services need, as docs/operations.md prints them.
var needed = [...]struct {
	use    string
	rights string
	when   func(Facts) bool
}{
	{"locks", "~perkey:lock{}:* +evalsha +eval +exists +hget +hmget +hgetall +hset +hdel +set +mget +del +pttl +pexpire +time", always},
	{"locks that are waited for", "&perkey:wake:* +publish +pubsub|numsub +subscribe +ping", always},
	{
		"queues", "~perkey:queue:* &perkey:queue:* +evalsha +eval +exists +get +hdel +hget +hlen +hmget +hrandfield +hset +hsetnx " +
			"+hstrlen +mget +persist +pexpire +ping +publish +pttl +set +subscribe +time +unlink +zadd +zcard +zcount +zlexcount +zrange " +
			"+zrangebylex +zrangebyscore +zrank +zrem +zrevrange +zrevrangebylex +zrevrank +zscore",
		func(f Facts) bool { return len(f.Queues.Value) > 0 },
	},
	{
		"a Beacon", "~perkey:ops:{fleet}:* &perkey:ops:watch:* +evalsha +eval +time +set +del +zadd +zrem +zrangebyscore +zremrangebyscore +pexpire +publish",
		func(f Facts) bool { return len(f.Fleet.Value.Processes) > 0 },
	},
}

func always(Facts) bool { return true }

// Rights compares the rights of a user of Redis with those that a service needs.
type Rights struct {
	User string
	// Missing has the rights that the user lacks, by the use of Redis that needs them, as
	// docs/operations.md names it.
	Missing map[string][]string
}

// readRights compares the rights of a user with those that are needed.
func readRights(ctx context.Context, rdb *redis.Client, o ExamineOptions) (a Reading[Rights]) {
	a.At = time.Now()
	if a.Value.User = o.User; a.Value.User == "" {
		if a.Value.User, a.Err = rdb.Do(ctx, "acl", "whoami").Text(); a.Err != nil {
			return a
		}
	}
	reply, err := rdb.Do(ctx, "acl", "getuser", a.Value.User).Result()
	if errors.Is(err, redis.Nil) {
		err = fmt.Errorf("there is no user %q", a.Value.User)
	}
	user := aclUser{categories: map[string][]string{}}
	if err == nil {
		err = user.parse(reply)
	}
	for _, rule := range user.commands {
		category, ok := strings.CutPrefix(rule[1:], "@")
		if !ok || category == "all" || user.categories[category] != nil || err != nil {
			continue
		}
		user.categories[category], err = rdb.Do(ctx, "acl", "cat", category).StringSlice()
	}
	if a.Err = err; err == nil {
		a.Value.Missing = user.missing(o.Prefix)
	}
	return a
}

// aclUser is what ACL GETUSER says of a user.
type aclUser struct {
	commands   []string // rules such as +get and -@dangerous, of which the last that matches is the one that counts
	keys       []string // patterns that may be read and written
	channels   []string
	categories map[string][]string
}

func (u *aclUser) parse(reply any) error {
	fields := map[string]any{}
	switch r := reply.(type) {
	case []any:
		for i := 0; i+1 < len(r); i += 2 {
			fields[fmt.Sprint(r[i])] = r[i+1]
		}
	case map[any]any:
		for name, value := range r {
			fields[fmt.Sprint(name)] = value
		}
	}
	rules, ok := fields["commands"].(string)
	if !ok {
		return errors.New("ACL GETUSER does not report the commands")
	}
	if selectors, _ := fields["selectors"].([]any); len(selectors) > 0 {
		return errors.New("the user has selectors")
	}
	for rule := range strings.FieldsSeq(rules) {
		if len(rule) > 1 {
			u.commands = append(u.commands, rule)
		}
	}
	for _, pattern := range words(fields["keys"]) {
		pattern = strings.TrimPrefix(pattern, "%RW~")
		if !strings.HasPrefix(pattern, "%") {
			u.keys = append(u.keys, strings.TrimPrefix(pattern, "~"))
		}
	}
	for _, pattern := range words(fields["channels"]) {
		u.channels = append(u.channels, strings.TrimPrefix(pattern, "&"))
	}
	return nil
}

// words are patterns: in one text, or before Redis 7 in a list.
func words(v any) (all []string) {
	if list, ok := v.([]any); ok {
		for _, one := range list {
			all = append(all, fmt.Sprint(one))
		}
		return all
	}
	text, _ := v.(string)
	return strings.Fields(text)
}

func (u *aclUser) missing(prefix string) map[string][]string {
	missing := map[string][]string{}
	for _, n := range needed {
		for right := range strings.FieldsSeq(n.rights) {
			what := strings.Replace(right[1:], "perkey", prefix, 1)
			has := false
			switch right[0] {
			case '+':
				what, has = right[1:], u.may(right[1:])
			case '~':
				has = within(u.keys, what)
			case '&':
				has = within(u.channels, what)
			}
			if !has {
				missing[n.use] = append(missing[n.use], right[:1]+what)
			}
		}
	}
	return missing
}

func (u *aclUser) may(command string) (allowed bool) {
	container, _, _ := strings.Cut(command, "|")
	for _, rule := range u.commands {
		name := rule[1:]
		category, is := strings.CutPrefix(name, "@")
		switch {
		case is && category != "all" && !slices.Contains(u.categories[category], command) && !slices.Contains(u.categories[category], container),
			!is && name != command && name != container:
			continue
		}
		allowed = rule[0] == '+'
	}
	return allowed
}

// within reports whether one of the patterns has all names of a kind, by the example of one of them.
func within(patterns []string, names string) bool {
	flat := strings.NewReplacer("/", "\x01") // which * matches in Redis, and not in a path
	example := flat.Replace(strings.ReplaceAll(names, "*", "example"))
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(flat.Replace(pattern), example)
		return err == nil && matched
	})
}
