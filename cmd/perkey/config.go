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
			Name: "check", Usage: "show all mistakes in a file, and what it leaves without a guard", ArgsUsage: "FILE", Action: t.configCheck,
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

func problemsJSON(problems []config.Problem) []problemJSON {
	all := []problemJSON{}
	for _, p := range problems {
		all = append(all, problemJSON{p.Line, p.Column, p.Path, p.Message})
	}
	return all
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
	var problems, warnings []config.Problem
	if wrong != nil {
		problems = wrong.Problems
	} else {
		warnings = f.Warnings()
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
			Warnings []problemJSON `json:"warnings,omitempty"`
		}{all[0], hash, problemsJSON(problems), problemsJSON(warnings)})
	} else {
		for _, p := range problems {
			t.printf("%s\n", printable(p.String()))
		}
		for _, p := range warnings {
			t.printf("WARNING: %s\n", printable(p.String()))
		}
		switch {
		case len(warnings) > 0:
			t.printf("%s is valid, but see the warnings above.\n", quote(all[0]))
		case f != nil:
			t.printf("%s is valid.\n", quote(all[0]))
		}
	}
	if err == nil && len(problems) > 0 {
		return statusError(exitFound)
	}
	return err
}
