package ginlock

import (
	"fmt"
	"reflect"
	"runtime"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/httplock"
)

// Routes returns the routes of an engine, and which of them have a guard, for httplock.CheckRoutes
// and the CheckRoutes of a config.Runtime. Call it when all routes are registered, and before the
// engine serves. It calls no handler.
//
// gin lists only the last handler of a route. The others are read from its unexported fields; the
// error says that a release of gin has changed these.
func Routes(r *gin.Engine) ([]httplock.RegisteredRoute, error) {
	chains := map[string]reflect.Value{}
	trees := field(reflect.ValueOf(r).Elem(), "trees", reflect.Slice)
	for i := range length(trees) {
		method := field(trees.Index(i), "method", reflect.String)
		chainsOf(field(trees.Index(i), "root", reflect.Pointer), method.String(), chains)
	}
	var routes []httplock.RegisteredRoute
	for _, listed := range r.Routes() {
		chain, read := chains[listed.Method+" "+listed.Path]
		if !read {
			return nil, fmt.Errorf("ginlock: Routes: the handlers of %s %s cannot be read from gin %s", listed.Method, listed.Path, gin.Version)
		}
		route := httplock.RegisteredRoute{Method: listed.Method, Pattern: listed.Path}
		for i := range chain.Len() - 1 { // the last one has nothing behind it to guard
			switch nameOf(chain.Index(i)) {
			case perKeyName:
				route.PerKey = true
			case fromConfigName:
				route.FromConfig = true
			}
		}
		routes = append(routes, route)
	}
	return routes, nil
}

// The names of our handlers: closures cannot be compared.
var (
	perKeyName     = nameOf(reflect.ValueOf((&guarded{}).handle))
	fromConfigName = nameOf(reflect.ValueOf((&configured{}).handle))
)

func nameOf(f reflect.Value) string { return runtime.FuncForPC(f.Pointer()).Name() }

// chainsOf adds the handlers of each route of a tree of gin's.
func chainsOf(node reflect.Value, method string, chains map[string]reflect.Value) {
	if !node.IsValid() || node.IsNil() {
		return
	}
	node = node.Elem()
	path, handlers := field(node, "fullPath", reflect.String), field(node, "handlers", reflect.Slice)
	if path.IsValid() && length(handlers) > 0 && handlers.Type().Elem().Kind() == reflect.Func {
		chains[method+" "+path.String()] = handlers
	}
	children := field(node, "children", reflect.Slice)
	for i := range length(children) {
		if child := children.Index(i); child.Kind() == reflect.Pointer {
			chainsOf(child, method, chains)
		}
	}
}

// field is a struct's field of this kind. The zero Value: it has none.
func field(v reflect.Value, name string, kind reflect.Kind) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	if f := v.FieldByName(name); f.IsValid() && f.Kind() == kind {
		return f
	}
	return reflect.Value{}
}

func length(v reflect.Value) int {
	if !v.IsValid() {
		return 0
	}
	return v.Len()
}
