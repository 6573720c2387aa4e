package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/config"
)

func (t *tool) configCommand() *cli.Command {
	return &cli.Command{
		Name: "config", Usage: "look at configuration files",
		Commands: []*cli.Command{{
			Name: "check", Usage: "show all mistakes in a file", ArgsUsage: "FILE", Action: t.configCheck,
			Description: "It does not connect to Redis, and shows no password. Environment variables that the file names must be set. Exit status: 0 the file is valid, 3 it is not.",
		}},
	}
}

type problemJSON struct {
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

func (t *tool) configCheck(_ context.Context, c *cli.Command) error {
	all, err := args(c, 1, 1)
	if err != nil {
		return err
	}
	f, err := config.Load(all[0])
	wrong, ok := errors.AsType[*config.Error](err)
	if err != nil && !ok {
		return err
	}
	err = nil
	problems := []problemJSON{}
	if wrong != nil {
		for _, p := range wrong.Problems {
			problems = append(problems, problemJSON{p.Line, p.Column, p.Path, p.Message})
		}
	}
	if isJSON(c) {
		hash := ""
		if f != nil {
			hash = f.Hash()
		}
		err = t.json(struct {
			File     string        `json:"file"`
			Hash     string        `json:"hash,omitempty"`
			Problems []problemJSON `json:"problems"`
		}{all[0], hash, problems})
	} else if f != nil {
		t.printf("%s is valid.\n", quote(all[0]))
	} else {
		for _, p := range wrong.Problems {
			t.printf("%s\n", printable(p.String()))
		}
	}
	if err == nil && len(problems) > 0 {
		return statusError(exitFound)
	}
	return err
}
