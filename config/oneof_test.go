//go:build !soak

package config

// OneOf is of how many cases one is tried.
const OneOf = 32
