package config

// ParseIn is Parse with an environment of its own.
func ParseIn(name string, data []byte, env map[string]string) (*File, error) {
	return parse(name, data, env)
}
