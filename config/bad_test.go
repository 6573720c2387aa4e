package config_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/perkey-go/perkey/config"
)

func TestProbe(t *testing.T) {
	env := map[string]string{"REDIS_PASSWORD": "x", "SENTINEL_PASSWORD": "y", "POOL": "10", "SHIP_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}
	for _, f := range []string{"full", "small", "cluster", "tls", "sentinel"} {
		data, _ := os.ReadFile("testdata/" + f + ".yaml")
		_, err := config.ParseIn(f+".yaml", data, env)
		t.Log(f, err)
	}
	data, _ := os.ReadFile(os.Getenv("TMPDIR") + "/bad.txt")
	for _, b := range strings.Split(string(data), "=====\n") {
		_, err := config.ParseIn("f.yaml", []byte(b), env)
		var e *config.Error
		t.Logf("-----\n%s", b)
		if errors.As(err, &e) {
			for _, p := range e.Problems {
				t.Log("  >> " + p.String())
			}
		} else {
			t.Log("  >> ACCEPTED", err)
		}
	}
}
