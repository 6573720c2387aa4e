package config_test

import (
	"bytes"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
)

func compiled(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", doc))
	s, err := c.Compile("schema.json")
	require.NoError(t, err)
	return s
}

// validate gives a YAML file to the schema, as an editor does.
func validate(t *testing.T, s *jsonschema.Schema, file []byte) error {
	t.Helper()
	var value any
	require.NoError(t, yaml.Unmarshal(file, &value))
	return s.Validate(plain(value))
}

// plain is a value as a decoder of JSON would make it.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case uint64:
		return int(v)
	case int64:
		return int(v)
	}
	return v
}

func TestSchema_TakesWhatTheLoaderTakes(t *testing.T) {
	t.Parallel()
	s := compiled(t)
	for path, data := range config.GoodFiles(t) {
		_, err := config.ParseIn(path, data, environment)
		assert.NoError(t, err)
		assert.NoError(t, validate(t, s, data), path)
	}
	for _, file := range []string{
		"redis: {pool_size: '${POOL}', max_retries: 0}", "queues: {q: {reservation_window: 0s, max_payload: 1_000B}}", "queues: {q: {reservation_window: +1.5h}}",
		"defaults: {max_body: 64MiB}", "routes: {'POST  /x': {key: k, fixed_key: true}}", "guards: {}",
		"defaults: {anonymous: true}\nguards: {a: {idempotency: {keep_body: 0}}, b: {idempotency: {keep_body: 0B}}}", "queues: {q: {reservation_window: -0}}",
	} {
		_, err := config.ParseIn("f.yaml", []byte(file), environment)
		assert.NoError(t, err)
		assert.NoError(t, validate(t, s, []byte(file)), file)
	}
}

func TestSchema_RefusesWhatItCan(t *testing.T) {
	t.Parallel()
	s := compiled(t)
	refused := 0
	for _, c := range badFiles(t) {
		var value any
		if err := yaml.Unmarshal([]byte(c.file), &value); err != nil {
			assert.False(t, c.schema, "%s: is not valid YAML", c.name)
			continue
		}
		err := s.Validate(plain(value))
		if c.schema {
			assert.Error(t, err, c.name)
			refused++
		} else if err != nil {
			t.Errorf("%s: the schema refuses it too: mark it +schema", c.name)
		}
	}
	assert.Greater(t, refused, 30)
}
