package config_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/internal/test/redistest"
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

// smallest is the program that docs/config.md shows.
func smallest(check func(error), pay gin.HandlerFunc) (*gin.Engine, *config.Runtime) {
	file, err := config.Load("perkey.yaml")
	check(err)
	rt, err := config.Build(file)
	check(err)

	r := gin.Default()
	r.Use(ginlock.FromConfig(rt)) // before the routes
	r.POST("/orders/:id/pay", pay)
	return r, rt
}

func TestDocs_TheSmallestFileWorks(t *testing.T) {
	env := redistest.Embedded(t)
	doc, err := os.ReadFile("../docs/config.md")
	require.NoError(t, err)

	file := regexp.MustCompile("(?s)```yaml\n(redis: .*?)```").FindSubmatch(doc)
	require.NotNil(t, file)
	require.Equal(t, 3, strings.Count(string(file[1]), "\n"))
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("perkey.yaml", []byte(strings.Replace(string(file[1]), "localhost:6379", env.Addr, 1)), 0o600))

	running, goOn := make(chan struct{}), make(chan struct{})
	check := func(err error) { require.NoError(t, err) }
	r, rt := smallest(check, func(c *gin.Context) {
		close(running)
		<-goOn
		c.String(http.StatusOK, "paid")
	})
	t.Cleanup(func() { assert.NoError(t, rt.Close()) })
	post := func() int {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/7/pay", nil))
		return w.Code
	}
	first := make(chan int)
	go func() { first <- post() }()
	<-running
	assert.Equal(t, http.StatusConflict, post())
	close(goOn)
	assert.Equal(t, http.StatusOK, <-first)
}
