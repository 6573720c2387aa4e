package config_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	echov4 "github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/echolock"
	echolockv5 "github.com/perkey-go/perkey/echolock/v5"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// routers make a guarded service, whose route takes any method or only POST, and read what it has registered.
var routers = map[string]func(rt *config.Runtime, pattern string, anyMethod bool) (guarded http.Handler, registered []httplock.RegisteredRoute, err error){
	"net/http": func(rt *config.Runtime, pattern string, anyMethod bool) (http.Handler, []httplock.RegisteredRoute, error) {
		if !anyMethod {
			pattern = "POST shop.example" + pattern
		}
		mux := http.NewServeMux()
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
		h := httplock.FromConfig(rt)(mux)
		registered, err := httplock.MuxRoutes(h, pattern)
		return h, registered, err
	},
	"gin": func(rt *config.Runtime, pattern string, anyMethod bool) (http.Handler, []httplock.RegisteredRoute, error) {
		e := gin.New()
		e.Use(ginlock.FromConfig(rt))
		if anyMethod {
			e.Any(pattern, func(*gin.Context) {})
		} else {
			e.POST(pattern, func(*gin.Context) {})
		}
		registered, err := ginlock.Routes(e)
		return e, registered, err
	},
	"echo": func(rt *config.Runtime, pattern string, anyMethod bool) (http.Handler, []httplock.RegisteredRoute, error) {
		e := echov4.New()
		routes := echolock.WatchRoutes(e)
		e.Use(echolock.FromConfig(rt))
		if anyMethod {
			e.Any(pattern, func(echov4.Context) error { return nil })
		} else {
			e.POST(pattern, func(echov4.Context) error { return nil })
		}
		registered, err := routes()
		return e, registered, err
	},
	"echo v5": func(rt *config.Runtime, pattern string, anyMethod bool) (http.Handler, []httplock.RegisteredRoute, error) {
		e := echov5.New()
		routes := echolockv5.WatchRoutes(e)
		e.Use(echolockv5.FromConfig(rt))
		if anyMethod {
			e.Any(pattern, func(*echov5.Context) error { return nil })
		} else {
			e.POST(pattern, func(*echov5.Context) error { return nil })
		}
		registered, err := routes()
		return e, registered, err
	},
}

// What CheckRoutes lets pass is guarded.
func TestRouters_HaveTheFilesRoutes(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, `
routes:
  POST /items\:batch: {key: taken, fixed_key: true}
`)
	hold(t, rt, "taken")
	for name, router := range routers {
		pattern := `/items\:batch`
		if name == "net/http" {
			pattern = "/items:batch"
		}
		if name == "gin" && strings.HasPrefix(gin.Version, "v1.10.") { // it reads an escape only in an engine that Run started
			continue
		}
		for _, anyMethod := range []bool{false, true} {
			handler, registered, err := router(rt, pattern, anyMethod)
			require.NoError(t, err, name)
			var others []string // that the file does not have
			if anyMethod {
				others = []string{"PUT " + pattern, "PATCH " + pattern, "DELETE " + pattern}
			}
			require.NoError(t, rt.CheckRoutes(registered, others...), name)
			for range 2 { // gin has another form of it from the first request on
				r := request("POST", "http://shop.example/items:batch")
				assert.Equal(t, http.StatusConflict, (&service{Handler: handler}).do(r).Code, "%s, any method: %t", name, anyMethod)
			}
		}
	}
}
