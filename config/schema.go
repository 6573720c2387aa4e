package config

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of files, for editors and for checks
// before a deployment. It accepts every file that Load accepts, and more: only Load
// checks names, and fields that depend on one another.
func Schema() []byte { return slices.Clone(schema) }
