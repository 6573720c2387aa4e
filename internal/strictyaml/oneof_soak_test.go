//go:build soak

package strictyaml_test

// oneOf is of how many hostile documents one is tried.
const oneOf = 1
