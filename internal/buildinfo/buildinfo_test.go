package buildinfo_test

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/internal/buildinfo"
)

func TestVersion_IsThatOfPerkey(t *testing.T) {
	const perkey, service = "github.com/perkey-go/perkey", "example.com/shop"
	other := &debug.Module{Path: perkey + "/lockprom", Version: "v0.9.0"}
	for want, info := range map[string]*debug.BuildInfo{
		"v1.0.0":  {Main: debug.Module{Path: perkey, Version: "v1.0.0"}},
		"v1.2.3":  {Main: debug.Module{Path: service}, Deps: []*debug.Module{other, {Path: perkey, Version: "v1.2.3"}}},
		"v1.2.4":  {Main: debug.Module{Path: service}, Deps: []*debug.Module{{Path: perkey, Version: "v1.2.3", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.2.4"}}}},
		"(devel)": {Main: debug.Module{Path: service}, Deps: []*debug.Module{{Path: perkey, Version: "v1.2.3", Replace: &debug.Module{Path: "../perkey"}}}},
		"":        {Main: debug.Module{Path: service}, Deps: []*debug.Module{other}},
	} {
		assert.Equal(t, want, buildinfo.Version(info))
	}
}
