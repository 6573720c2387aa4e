package config_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
)

func TestDocs_FilesAreRight(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/config.md")
	require.NoError(t, err)
	full, err := os.ReadFile("testdata/full.yaml")
	require.NoError(t, err)
	assert.Contains(t, string(doc), "```yaml\n"+string(full)+"```", "docs/config.md has testdata/full.yaml as it is")

	lines := regexp.MustCompile(`(?m)^redis: .*$`).FindAll(doc, -1)
	require.Len(t, lines, 5)
	for _, line := range lines {
		_, err := config.ParseIn("f.yaml", line, environment)
		assert.NoError(t, err, string(line))
	}
}
