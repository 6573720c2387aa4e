package lockprom_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/lockprom"
	"github.com/perkey-go/perkey/ops"
)

const (
	rulesFile = "../deploy/prometheus/perkey.rules.yml"
	testsFile = "../deploy/prometheus/perkey.test.yml"
	runbook   = "../docs/runbook.md"
	docsFile  = "../docs/operations.md"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

func all(text, pattern string) (found []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

var (
	selector = regexp.MustCompile(`(perkey_[a-z_]+)(\{[^}]*\})?`)
	label    = regexp.MustCompile(`([a-z_]+)=~?\\?["']|([a-z_]+)!~?\\?["']`)
	suffix   = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// What the board, the rules and their tests ask for exists: the metric, and each label that is selected by.
func TestDeploy_NamesOnlyExportedMetrics(t *testing.T) {
	t.Parallel()
	exported := map[string]ops.Metric{}
	for _, m := range slices.Concat(lockprom.Metrics(), lockprom.FleetMetrics()) {
		exported[m.Name] = m
	}
	shown := map[string]bool{}
	for _, file := range []string{boardFile, rulesFile, testsFile} {
		text := read(t, file)
		for _, m := range selector.FindAllStringSubmatch(text, -1) {
			name := m[1]
			metric, ok := exported[name]
			if !ok {
				metric, ok = exported[suffix.ReplaceAllString(name, "")]
				ok = ok && metric.Type == "histogram"
			}
			if !assert.True(t, ok, "%s: nobody exports %s", file, name) {
				continue
			}
			shown[metric.Name] = true
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				known := slices.Concat(metric.Labels, []string{"instance", "job", "le"})
				assert.Contains(t, known, l[1]+l[2], "%s: a label of %s", file, name)
			}
		}
	}
	for name := range exported {
		assert.True(t, shown[name], "nothing shows %s", name)
	}
}

// Each alert links to its section, which says what it means, what to look at, what to do and what that risks.
func TestDeploy_EachAlertHasARunbook(t *testing.T) {
	t.Parallel()
	alerts, rules, pages := all(read(t, rulesFile), `- alert: (\w+)`), read(t, rulesFile), read(t, runbook)
	require.NotEmpty(t, alerts)
	assert.Equal(t, alerts, all(pages, `(?m)^## (\w+)$`), "the same, in the same order")
	sections := regexp.MustCompile(`(?m)^## `).Split(pages, -1)[1:]
	require.GreaterOrEqual(t, len(sections), len(alerts), "then come findings, of which package ops tests that they have one")
	for i, alert := range alerts {
		assert.Contains(t, rules, "docs/runbook.md#"+strings.ToLower(alert)+"\n")
		for _, part := range []string{"**What it means.**", "**Look at.**", "**Do.**", "**Risk.**"} {
			assert.Equal(t, 1, strings.Count(sections[i], part), "%s: %s", alert, part)
		}
		tested := all(read(t, testsFile), `name: `+alert+` (fires|is quiet)`)
		assert.Equal(t, []string{"fires", "is quiet"}, tested, alert)
	}
}

func TestDeploy_TheDocsListTheMetrics(t *testing.T) {
	t.Parallel()
	docs := read(t, docsFile)
	metrics := slices.Concat(lockprom.Metrics(), lockprom.FleetMetrics())
	for _, m := range metrics {
		name := m.Name
		if len(m.Labels) > 0 {
			name += "{" + strings.Join(m.Labels, ",") + "}"
		}
		assert.Contains(t, docs, "| `"+name+"` | "+m.Type+". "+m.Help+" |")
	}
	for _, name := range all(docs, "`(perkey_[a-z_]+)[{`]") {
		assert.True(t, slices.ContainsFunc(metrics, func(m ops.Metric) bool { return m.Name == name }), name)
	}
}

// Prometheus's own tool checks the rules, and runs their tests. scripts/promtool.sh installs it.
func TestDeploy_PromtoolPasses(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		require.Empty(t, os.Getenv("PERKEY_REQUIRE_PROMTOOL"), "there is no promtool")
		t.Log("there is no promtool: the rules are not checked")
		return
	}
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", testsFile}} {
		out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
		assert.NoError(t, err, "%s", out)
	}
}
