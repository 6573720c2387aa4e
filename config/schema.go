package config

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of files, for editors and for checks
// before a deployment. It takes every file that Load takes, but not the reverse: which
// names there are, and what only together makes sense, Load alone knows.
func Schema() []byte { return slices.Clone(schema) }
