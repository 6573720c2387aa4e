package docs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type deployment struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Spec       struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []struct {
					Ports []struct {
						Name string
						Port int `yaml:"containerPort"`
					}
					Lifecycle struct {
						PreStop struct{ Exec struct{ Command []string } } `yaml:"preStop"`
					}
					Startup   probe `yaml:"startupProbe"`
					Readiness probe `yaml:"readinessProbe"`
					Liveness  probe `yaml:"livenessProbe"`
				}
			}
		}
	}
}

type probe struct {
	Get struct{ Path, Port string } `yaml:"httpGet"`
}

func TestKubernetes_TheDeploymentFitsTheProgram(t *testing.T) {
	t.Parallel()
	blocks := map[string]string{}
	for _, d := range documents(t) {
		if strings.HasPrefix(d.path, "docs/howto/") {
			for _, b := range d.code {
				blocks[d.path+" "+b.language] += b.text
			}
		}
	}
	var d deployment
	require.NoError(t, yaml.Unmarshal([]byte(blocks["docs/howto/kubernetes.md yaml"]), &d))
	assert.Equal(t, "apps/v1", d.APIVersion)
	assert.Equal(t, "Deployment", d.Kind)
	pod := d.Spec.Template.Spec
	assert.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels)
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.Len(t, c.Ports, 1)
	for _, p := range []probe{c.Startup, c.Readiness, c.Liveness} {
		assert.Equal(t, c.Ports[0].Name, p.Get.Port)
		assert.Contains(t, blocks["docs/howto/kubernetes.md go"], `r.GET("`+p.Get.Path+`", func`, "without a guard")
	}

	command := c.Lifecycle.PreStop.Exec.Command
	require.Len(t, command, 2)
	sleep, err := time.ParseDuration(command[1] + "s")
	require.NoError(t, err)
	const own = 30 * time.Second
	require.Contains(t, blocks["docs/howto/rolling-deployment.md go"], "30*time.Second", "the program's own time")
	assert.Greater(t, time.Duration(pod.Grace)*time.Second, sleep+own)
}
