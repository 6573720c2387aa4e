// Package absent finds what callers forgot to set.
package absent

import "reflect"

// Is reports whether v is nil, or holds a nil pointer: a *redis.Client that was never
// made is no nil redis.UniversalClient.
func Is(v any) bool {
	if v == nil {
		return true
	}
	p := reflect.ValueOf(v)
	return p.Kind() == reflect.Pointer && p.IsNil()
}
