// Package absent detects nil arguments, also those in an interface.
package absent

import "reflect"

// Is reports whether v is nil or holds a nil pointer. A nil *redis.Client in a
// redis.UniversalClient, for example, is not equal to nil.
func Is(v any) bool {
	if v == nil {
		return true
	}
	p := reflect.ValueOf(v)
	return p.Kind() == reflect.Pointer && p.IsNil()
}
