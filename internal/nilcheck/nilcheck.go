// Package nilcheck finds nil pointers behind interfaces.
package nilcheck

import "reflect"

// IsNil reports whether v is nil or holds a nil pointer: a nil *redis.Client in a
// redis.UniversalClient is not equal to nil, and panics when it is used.
func IsNil(v any) bool {
	if v == nil {
		return true
	}
	p := reflect.ValueOf(v)
	return p.Kind() == reflect.Pointer && p.IsNil()
}
